// Bytes from a hostile other side, in both roles of the data plane over TCP and through shared memory: to a
// server's connection, and to a client's connection with calls in progress. Looks for crashes, for writes
// outside the calls' memory (ASan), for calls and connections that do not end.
//
// The input's first byte says what to do: bit 0 the role, bit 1 whether the greeting is done properly before,
// bit 2 whether the rest is made into plausible frames (magic numbers set, lengths cut down), so that more
// than the first check is reached, bit 3 whether the connection is one of shared memory, bit 4 whether that
// one's setup comes properly before the rest.
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "common/log.h"
#include "transport/memory.h"
#include "transport/shm/setup.h"
#include "transport/shm/shm_client.h"
#include "transport/shm/shm_server.h"
#include "transport/tcp/client_connection.h"
#include "transport/tcp/server_connection.h"

namespace nacre {
namespace {

constexpr size_t kMaxInput = 64 << 10;  // fits into the socket, so that nobody has to wait

using Bytes = std::vector<std::byte>;

void Require(bool condition) {
  if (!condition) std::abort();
}

void Append(Bytes* bytes, const FrameHeader& header) {
  bytes->resize(bytes->size() + kFrameHeaderSize);
  EncodeFrameHeader(header, bytes->data() + bytes->size() - kFrameHeaderSize);
}

// A header's bytes become one with the right beginning and lengths that the input can fill.
void MakePlausible(std::span<std::byte> bytes) {
  while (bytes.size() >= kFrameHeaderSize) {
    Bytes valid;
    Append(&valid, FrameHeader{});
    std::memcpy(bytes.data(), valid.data(), 4);
    bytes[6] = bytes[7] = std::byte{0};
    const uint64_t call = (1 << 16) | static_cast<uint64_t>(bytes[8] & std::byte{3});
    std::memcpy(bytes.data() + 8, &call, sizeof call);
    uint32_t body = 0, payload = 0;
    std::memcpy(&body, bytes.data() + 24, sizeof body);
    std::memcpy(&payload, bytes.data() + 28, sizeof payload);
    body %= 128;
    payload %= 8192;
    std::memcpy(bytes.data() + 24, &body, sizeof body);
    std::memcpy(bytes.data() + 28, &payload, sizeof payload);
    bytes = bytes.subspan(std::min<size_t>(bytes.size(), kFrameHeaderSize + body + payload));
  }
}

// One end for the connection, the other for the input.
class Wire {
 public:
  explicit Wire(asio::io_context& context) : context_(context) {
    int ends[2];
    Require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
    near_ = ends[0];
    far_ = ends[1];
  }
  ~Wire() { ::close(far_); }

  StreamSocket Near() {
    StreamSocket socket(context_.get_executor());
    socket.assign(asio::local::stream_protocol(), near_);
    socket.non_blocking(true);
    return socket;
  }

  void Send(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      ssize_t sent = ::send(far_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent > 0) bytes = bytes.subspan(static_cast<size_t>(sent));
      Drain();
      if (sent < 0 && errno != EAGAIN) break;
    }
  }

  // Sends the message with which the other side of a shared-memory connection begins.
  void SendSetup(const std::shared_ptr<SharedMemory>& memory) {
    Require(shm::SendSetup(far_, {memory}).ok());
    Drain();
  }

  // Ends the stream and lets everything come to rest.
  void End() {
    Drain();
    ::shutdown(far_, SHUT_RDWR);
    Drain();
  }

 private:
  void Drain() {
    std::byte ignored[4096];
    do {
      context_.restart();
      context_.poll();
    } while (::recv(far_, ignored, sizeof ignored, 0) > 0);
  }

  asio::io_context& context_;
  int near_, far_;
};

Task<void> Serve(std::shared_ptr<IncomingCall> call) {
  Bytes data(std::min<uint64_t>(call->memory_size(), 100'000));
  if (call->memory_kind() == CallMemory::kPutTarget) {
    const std::span<const std::byte> out = data;
    (void)co_await call->Put(0, std::span(&out, 1));
  } else if (call->memory_kind() == CallMemory::kGetSource) {
    const std::span<std::byte> in = data;
    (void)co_await call->Get(0, std::span(&in, 1));
  }
  (void)co_await call->Reply(call->body());
}

// The other side's, and this side's.
std::shared_ptr<SharedMemory> Foreign() {
  static const auto memory = SharedMemory::Create("fuzz-foreign", 64 << 10).value();
  return memory;
}

struct Own {
  std::shared_ptr<shm::ShmMemory> memory = std::make_shared<shm::ShmMemory>();
  std::shared_ptr<MemoryRegion> region =
      memory->Register(SharedMemory::Create("fuzz-own", 128 << 10).value()).value();
};

Task<void> ServeOwn(std::shared_ptr<IncomingCall> call, std::byte* own) {
  if (call->memory_kind() == CallMemory::kPutTarget) {
    const std::span<const std::byte> out(own, std::min<uint64_t>(call->memory_size(), 100'000));
    (void)co_await call->Put(0, std::span(&out, 1));
    (void)co_await call->Reply(std::string());
    co_return;
  }
  co_await Serve(std::move(call));
}

struct Mode {
  bool greet, shm, setup;
};

void ToServer(Mode mode, Bytes input) {
  asio::io_context context(1);
  Wire wire(context);
  TcpOptions options;
  options.identity = "fuzz";
  bool lost = false;
  Own own;
  auto sink = std::make_shared<CallSink>(context.get_executor(), [&own](std::shared_ptr<IncomingCall> call) {
    return ServeOwn(std::move(call), own.region->data());
  });
  auto end = [&lost] { lost = true; };
  std::shared_ptr<ServerConnection> connection;
  if (mode.shm) {
    connection = std::make_shared<shm::ShmServerConnection>(wire.Near(), "fuzz", sink, RealClock(), options,
                                                            end, own.memory, shm::ShmServerOptions());
  } else {
    connection = std::make_shared<ServerConnection>(wire.Near(), "fuzz", sink, RealClock(), options, end);
  }
  connection->Serve();
  if (mode.shm && mode.setup) wire.SendSetup(Foreign());
  Bytes bytes;
  if (mode.greet) Append(&bytes, FrameHeader{});
  bytes.insert(bytes.end(), input.begin(), input.end());
  wire.Send(bytes);
  wire.End();
  Require(lost);
}

// Calls with each kind of memory; their numbers are the plausible ones.
struct Calls {
  std::vector<Bytes> memories;
  std::vector<std::shared_ptr<ClientCall>> started;

  void Begin(ClientConnection& connection) {
    for (CallMemory kind : {CallMemory::kNone, CallMemory::kPutTarget, CallMemory::kGetSource}) {
      CallRequest request;
      request.kind = kind;
      if (kind != CallMemory::kNone) {
        Bytes& memory = memories.emplace_back(kind == CallMemory::kPutTarget ? 5000 : 70'000);
        request.memory.push_back({*RegisterHostMemory(memory.data(), memory.size()), 0, memory.size()});
      }
      auto call = std::make_shared<ClientCall>(std::move(request), kNoDeadline);
      if (connection.Begin(call)) started.push_back(std::move(call));
    }
  }
};

void ToClient(Mode mode, Bytes input) {
  asio::io_context context(1);
  Wire wire(context);
  Own own;
  std::shared_ptr<ClientConnection> connection;
  if (mode.shm) {
    shm::Shown shown = own.memory->Snapshot();
    connection = std::make_shared<shm::ShmClientConnection>(wire.Near(), "fuzz", RealClock(), own.memory,
                                                            std::move(shown));
  } else {
    connection = std::make_shared<ClientConnection>(wire.Near(), "fuzz", RealClock());
  }
  Spawn(context.get_executor(), [](std::shared_ptr<ClientConnection> connection) -> Task<void> {
    std::string identity = "fuzz";
    (void)co_await connection->Greet(std::move(identity), std::chrono::seconds(1000));
  }(connection));
  context.poll();
  if (mode.shm && mode.setup) wire.SendSetup(Foreign());
  Calls calls;
  if (mode.greet && (!mode.shm || mode.setup)) {
    Bytes bytes;
    FrameHeader hello;
    hello.offset = 8;
    Append(&bytes, hello);
    wire.Send(bytes);
    calls.Begin(*connection);
    Require(calls.started.size() == 3);
  }
  wire.Send(input);
  wire.End();
  for (const auto& call : calls.started) Require(call->result.IsSet());
  Require(connection->closing());
}

}  // namespace
}  // namespace nacre

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nacre;
  static const bool quiet = (SetLogLevel(LogLevel::kError), true);
  (void)quiet;
  if (size == 0 || size > kMaxInput) return 0;
  const uint8_t mode = data[0];
  const auto* begin = reinterpret_cast<const std::byte*>(data + 1);
  Bytes input(begin, begin + size - 1);
  if ((mode & 4) != 0) MakePlausible(input);
  const Mode how{(mode & 2) != 0, (mode & 8) != 0, (mode & 16) != 0};
  if ((mode & 1) != 0) {
    ToServer(how, std::move(input));
  } else {
    ToClient(how, std::move(input));
  }
  return 0;
}
