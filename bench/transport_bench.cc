// Measures the cost of the data plane over bare sockets, in one process over loopback: run it as
// build/bin/transport_bench.
//
// The client and the server each have a thread of their own (the client two where the name says so). "Bare"
// is what two threads reach with blocking sockets and nothing else: a ping-pong (bytes there / bytes back),
// and a stream in parts of 1 MiB out of and into as many buffers as the argument says: 16 are more than the
// cache holds, as with 16 calls in flight. "Memcpy" is one thread that copies parts of 1 MiB between as many:
// what shared memory cannot beat with one thread at the client. Compare within one run; CPU is what the whole
// process spent on one call or part.
#include <absl/strings/str_format.h>
#include <arpa/inet.h>
#include <benchmark/benchmark.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <cstdlib>
#include <cstring>
#include <future>
#include <thread>

#include "common/log.h"
#include "transport/inproc/inproc_transport.h"
#include "transport/shared_memory.h"
#include "transport/shm/shm_transport.h"
#include "transport/tcp/tcp_transport.h"
#include "transport/verbs/verbs_transport.h"

namespace nacre {
namespace {

constexpr size_t kSmall = 4 << 10;
constexpr size_t kLarge = 1 << 20;
constexpr size_t kReplySize = 40;  // about what an ObjectReply takes

void Require(bool condition, const char* what) {
  if (condition) return;
  std::perror(what);
  std::abort();
}

// Two connected TCP sockets over loopback.
struct SocketPair {
  int a = -1, b = -1;

  SocketPair() {
    int listener = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof at;
    Require(::bind(listener, reinterpret_cast<sockaddr*>(&at), size) == 0, "bind");
    Require(::listen(listener, 1) == 0, "listen");
    Require(::getsockname(listener, reinterpret_cast<sockaddr*>(&at), &size) == 0, "getsockname");
    a = ::socket(AF_INET, SOCK_STREAM, 0);
    Require(::connect(a, reinterpret_cast<sockaddr*>(&at), size) == 0, "connect");
    b = ::accept(listener, nullptr, nullptr);
    ::close(listener);
    const int on = 1;
    ::setsockopt(a, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    ::setsockopt(b, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  ~SocketPair() {
    ::close(a);
    ::close(b);
  }
};

bool SendAll(int fd, const char* data, size_t size) {
  while (size > 0) {
    ssize_t n = ::send(fd, data, size, MSG_NOSIGNAL);
    if (n <= 0) return false;
    data += n;
    size -= static_cast<size_t>(n);
  }
  return true;
}

bool ReceiveAll(int fd, char* data, size_t size) {
  while (size > 0) {
    ssize_t n = ::recv(fd, data, size, 0);
    if (n <= 0) return false;
    data += n;
    size -= static_cast<size_t>(n);
  }
  return true;
}

// There `request` bytes, back `reply` bytes.
void BarePingPong(benchmark::State& state) {
  const size_t request = static_cast<size_t>(state.range(0)), reply = static_cast<size_t>(state.range(1));
  SocketPair sockets;
  std::thread server([&] {
    std::string in(request, 0), out(reply, 'r');
    while (ReceiveAll(sockets.b, in.data(), request) && SendAll(sockets.b, out.data(), reply)) {
    }
  });
  std::string in(reply, 0), out(request, 'q');
  for (auto _ : state) {
    Require(SendAll(sockets.a, out.data(), request), "send");
    Require(ReceiveAll(sockets.a, in.data(), reply), "recv");
  }
  ::shutdown(sockets.a, SHUT_RDWR);
  server.join();
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * std::max(request, reply)));
}

void BareStream(benchmark::State& state) {
  const auto buffers = static_cast<size_t>(state.range(0));
  SocketPair sockets;
  std::thread server([&] {
    const std::vector<std::string> out(buffers, std::string(kLarge, 's'));
    for (size_t i = 0; SendAll(sockets.b, out[i % buffers].data(), kLarge); ++i) {
    }
  });
  std::vector<std::string> in(buffers, std::string(kLarge, 0));
  size_t i = 0;
  for (auto _ : state) Require(ReceiveAll(sockets.a, in[i++ % buffers].data(), kLarge), "recv");
  ::shutdown(sockets.a, SHUT_RDWR);
  server.join();
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * kLarge));
}

void Memcpy(benchmark::State& state) {
  const auto buffers = static_cast<size_t>(state.range(0));
  const auto from = SharedMemory::Create("bench-from", buffers * kLarge).value();
  const auto to = SharedMemory::Create("bench-to", buffers * kLarge).value();
  std::memset(from->data(), 1, from->size());
  std::memset(to->data(), 2, to->size());
  size_t i = 0;
  for (auto _ : state) {
    const size_t at = i++ % buffers * kLarge;
    std::memcpy(to->data() + at, from->data() + at, kLarge);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * kLarge));
}

// An io_context with its threads.
class Side {
 public:
  explicit Side(int threads) : context_(threads) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { context_.run(); });
  }
  ~Side() {
    work_.reset();
    for (std::thread& thread : threads_) thread.join();
  }
  Executor executor() { return context_.get_executor(); }

 private:
  asio::io_context context_;
  asio::executor_work_guard<asio::io_context::executor_type> work_ = asio::make_work_guard(context_);
  std::vector<std::thread> threads_;
};

enum Kind { kTcp, kUnix, kShm, kVerbs, kInproc };

struct Pair {
  Pair(Kind kind, size_t size, int client_threads)
      : client_side(client_threads),
        size(size),
        pool(SharedMemory::Create("bench-pool", 16 * size).value()),
        memory(SharedMemory::Create("bench-memory", 16 * size).value()) {
    std::memset(pool->data(), 1, pool->size());
    std::memset(memory->data(), 2, memory->size());
    auto network = MakeInprocNetwork();
    auto make = [&](Side& side) {
      if (kind == kInproc) return MakeInprocTransport(network, side.executor(), RealClock());
      if (kind == kShm) return MakeShmTransport(side.executor(), RealClock());
      if (kind == kVerbs) return MakeVerbsTransport(side.executor(), RealClock());
      return MakeTcpTransport(side.executor(), RealClock());
    };
    client = make(client_side);
    server = make(kind == kInproc ? client_side : server_side);
    std::string address = "127.0.0.1:0";
    if (kind == kUnix) address = absl::StrFormat("unix:/tmp/nacre_transport_bench.%d", ::getpid());
    if (kind == kShm) address = absl::StrFormat("unix:@nacre_transport_bench.%d", ::getpid());
    if (kind == kInproc) address = "inproc:bench";
    pool_region = server->RegisterShared(pool).value();
    region = client->RegisterShared(memory).value();
    listener =
        server
            ->Listen(address,
                     [this](std::shared_ptr<IncomingCall> call) { return Handle(this, std::move(call)); })
            .value();
    peer = client->Connect(listener->address()).value();
  }

  // The body's first byte says which buffer to use. Lent, as the object server does with what is in its
  // cache.
  static Task<void> Handle(Pair* self, std::shared_ptr<IncomingCall> call) {
    const std::span<std::byte> buffer(self->pool->data() + static_cast<size_t>(call->body()[0]) * self->size,
                                      self->size);
    Status status;
    if (call->memory_kind() == CallMemory::kPutTarget) {
      const std::span<const std::byte> out = buffer.first(call->memory_size());
      status = co_await call->Lend(0, std::span(&out, 1), self->pool);
    } else if (call->memory_kind() == CallMemory::kGetSource) {
      const std::span<std::byte> in = buffer.first(call->memory_size());
      status = co_await call->Get(0, std::span(&in, 1));
    }
    Require(status.ok(), "transfer");
    std::string reply(kReplySize, 'r');
    status = co_await call->Reply(std::move(reply));
    Require(status.ok(), "reply");
  }

  Side client_side, server_side{1};
  const size_t size;
  const std::shared_ptr<SharedMemory> pool, memory;
  std::unique_ptr<Transport> client, server;
  std::shared_ptr<MemoryRegion> pool_region, region;
  std::unique_ptr<Listener> listener;
  std::shared_ptr<Peer> peer;
};

// Calls one behind the other, until there have been `count` in all lanes together.
Task<int> Lane(Pair* pair, int lane, CallMemory kind, size_t size, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    CallRequest request;
    request.body = std::string(kReplySize, static_cast<char>(lane));
    request.kind = kind;
    if (size > 0) request.memory.push_back({pair->region, lane * size, size});
    auto reply = co_await pair->peer->Call(std::move(request), std::chrono::seconds(30));
    Require(reply.ok(), "call");
  }
  co_return 0;
}

Task<int> Lanes(Pair* pair, int lanes, CallMemory kind, size_t size, int64_t count) {
  std::vector<Task<int>> tasks;
  for (int i = 0; i < lanes; ++i) tasks.push_back(Lane(pair, i, kind, size, count));
  (void)co_await WhenAll(std::move(tasks));
  co_return 0;
}

void RunAndWait(Pair& pair, int lanes, CallMemory kind, size_t size, int64_t count) {
  std::promise<void> done;
  Spawn(pair.client_side.executor(), Lanes(&pair, lanes, kind, size, count), [&](int) { done.set_value(); });
  done.get_future().wait();
}

void Calls(benchmark::State& state, Kind link, CallMemory kind, size_t size, int lanes,
           int client_threads = 1) {
  if (link == kVerbs && !LookForRdma().ok()) {
    return state.SkipWithError(std::string(LookForRdma().message()).c_str());
  }
  Pair pair(link, std::max<size_t>(size, 1), client_threads);
  RunAndWait(pair, lanes, kind, size, 10);  // connects
  const int64_t batch = std::max<int64_t>(1, 1024 / lanes);
  while (state.KeepRunningBatch(batch * lanes)) RunAndWait(pair, lanes, kind, size, batch);
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * size));
}

#define NACRE_ALL(link, name)                                                           \
  BENCHMARK_CAPTURE(Calls, name##_echo, link, CallMemory::kNone, 0, 1)                  \
      ->MeasureProcessCPUTime()                                                         \
      ->UseRealTime();                                                                  \
  BENCHMARK_CAPTURE(Calls, name##_put_4k, link, CallMemory::kPutTarget, kSmall, 1)      \
      ->MeasureProcessCPUTime()                                                         \
      ->UseRealTime();                                                                  \
  BENCHMARK_CAPTURE(Calls, name##_get_4k, link, CallMemory::kGetSource, kSmall, 1)      \
      ->MeasureProcessCPUTime()                                                         \
      ->UseRealTime();                                                                  \
  BENCHMARK_CAPTURE(Calls, name##_put_4k_x16, link, CallMemory::kPutTarget, kSmall, 16) \
      ->MeasureProcessCPUTime()                                                         \
      ->UseRealTime();                                                                  \
  BENCHMARK_CAPTURE(Calls, name##_get_4k_x16, link, CallMemory::kGetSource, kSmall, 16) \
      ->MeasureProcessCPUTime()                                                         \
      ->UseRealTime();                                                                  \
  BENCHMARK_CAPTURE(Calls, name##_put_1m, link, CallMemory::kPutTarget, kLarge, 1)      \
      ->MeasureProcessCPUTime()                                                         \
      ->UseRealTime();                                                                  \
  BENCHMARK_CAPTURE(Calls, name##_get_1m, link, CallMemory::kGetSource, kLarge, 1)      \
      ->MeasureProcessCPUTime()                                                         \
      ->UseRealTime();                                                                  \
  BENCHMARK_CAPTURE(Calls, name##_put_1m_x16, link, CallMemory::kPutTarget, kLarge, 16) \
      ->MeasureProcessCPUTime()                                                         \
      ->UseRealTime();                                                                  \
  BENCHMARK_CAPTURE(Calls, name##_get_1m_x16, link, CallMemory::kGetSource, kLarge, 16) \
      ->MeasureProcessCPUTime()                                                         \
      ->UseRealTime()

BENCHMARK(BarePingPong)
    ->Args({64, 64})
    ->Args({64, 4096 + 64})
    ->Args({64, 1 << 20})
    ->MeasureProcessCPUTime()
    ->UseRealTime();
BENCHMARK(Memcpy)->Arg(1)->Arg(16)->MeasureProcessCPUTime()->UseRealTime();
BENCHMARK(BareStream)->Arg(1)->Arg(16)->MeasureProcessCPUTime()->UseRealTime();
NACRE_ALL(kTcp, tcp);
NACRE_ALL(kUnix, unix);
NACRE_ALL(kShm, shm);
NACRE_ALL(kVerbs, verbs);  // needs an RDMA device; bench/rdma sets it beside perftest
BENCHMARK_CAPTURE(Calls, shm_put_1m_x16_client_threads_2, kShm, CallMemory::kPutTarget, kLarge, 16, 2)
    ->MeasureProcessCPUTime()
    ->UseRealTime();
NACRE_ALL(kInproc, inproc);

}  // namespace
}  // namespace nacre

BENCHMARK_MAIN();
