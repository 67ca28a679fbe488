#include "daemon/cli/bench_transport.h"

#include <absl/strings/str_format.h>

#include <atomic>
#include <cerrno>

#include "common/ids.h"
#include "common/runtime.h"
#include "transport/data_plane.h"
#include "transport/shared_memory.h"
#include "transport/transport.h"

namespace nacre::cli {
namespace {

constexpr uint64_t kLargeCall = 1 << 20;
constexpr size_t kLanes = 16;
constexpr size_t kBodySize = 40;  // about what requests and replies of an OSS take
constexpr Duration kCallTimeout = std::chrono::seconds(30);

struct Workload {
  std::string name;
  CallMemory kind = CallMemory::kNone;
  uint64_t bytes = 0;
  size_t lanes = 1;
  uint64_t calls = 0;
};

// Both sides. The server puts out of and gets into memory that is registered, as an OSS does; the first byte
// of a call says which part of it.
class TransportPair {
 public:
  explicit TransportPair(std::string path) : path_(std::move(path)) {}
  ~TransportPair() {
    peer_.reset();
    listener_.reset();
    client_side_.Stop();
    server_side_.Stop();
  }

  Status Open() {
    const std::string anywhere = "127.0.0.1:0";
    ASSIGN_OR_RETURN(server_, MakeDataPlane(server_side_.executor(), RealClock(), path_, anywhere));
    ASSIGN_OR_RETURN(client_, MakeDataPlane(client_side_.executor(), RealClock(), path_));
    ASSIGN_OR_RETURN(server_region_, MakeMemory(*server_, "bench-server"));
    ASSIGN_OR_RETURN(client_region_, MakeMemory(*client_, "bench-client"));
    auto handler = [this](std::shared_ptr<IncomingCall> call) { return Serve(this, std::move(call)); };
    ASSIGN_OR_RETURN(listener_, server_->Listen(anywhere, handler));
    ASSIGN_OR_RETURN(peer_, client_->Connect(listener_->address()));
    return client_side_.Run(Call(this, 0, Workload{}));  // connects
  }

  std::string used() const { return peer_->path().path; }

  StatusOr<Figure> Measure(const Workload& work) {
    const Duration begin = RealClock().Now();
    RETURN_IF_ERROR(client_side_.Run(CallInLanes(this, work)));
    return Figure{work.name, work.calls, work.calls * work.bytes, RealClock().Now() - begin};
  }

 private:
  static StatusOr<std::shared_ptr<MemoryRegion>> MakeMemory(Transport& transport, const char* name) {
    ASSIGN_OR_RETURN(std::shared_ptr<SharedMemory> memory, SharedMemory::Create(name, kLanes * kLargeCall));
    std::fill_n(memory->data(), memory->size(), std::byte{1});
    return transport.RegisterShared(std::move(memory));
  }

  static Task<void> Serve(TransportPair* self, std::shared_ptr<IncomingCall> call) {
    const size_t lane = call->body().empty() ? 0 : static_cast<uint8_t>(call->body()[0]) % kLanes;
    const std::span<std::byte> own(self->server_region_->data() + lane * kLargeCall, call->memory_size());
    Status status;
    if (call->memory_kind() == CallMemory::kPutTarget) {
      const std::span<const std::byte> out(own);
      std::shared_ptr<void> keep = self->server_region_;
      status = co_await call->Lend(0, std::span(&out, 1), std::move(keep));
    } else if (call->memory_kind() == CallMemory::kGetSource) {
      status = co_await call->Get(0, std::span(&own, 1));
    }
    std::string reply(kBodySize, status.ok() ? 'y' : 'n');
    (void)co_await call->Reply(std::move(reply));
  }

  static Task<Status> Call(TransportPair* self, size_t lane, Workload work) {
    CallRequest request;
    request.body.assign(kBodySize, static_cast<char>(lane));
    request.kind = work.kind;
    if (work.bytes > 0) request.memory.push_back({self->client_region_, lane * kLargeCall, work.bytes});
    CO_ASSIGN_OR_RETURN(const std::string reply,
                        co_await self->peer_->Call(std::move(request), kCallTimeout));
    if (!reply.empty() && reply[0] == 'y') co_return OkStatus();
    co_return absl::InternalError("the server could not reach the memory of a call");
  }

  static Task<Status> Lane(TransportPair* self, size_t lane, Workload work, std::atomic<int64_t>* left) {
    while (--*left >= 0) CO_RETURN_IF_ERROR(co_await Call(self, lane, work));
    co_return OkStatus();
  }

  static Task<Status> CallInLanes(TransportPair* self, Workload work) {
    std::atomic<int64_t> left = static_cast<int64_t>(work.calls);
    std::vector<Task<Status>> lanes;
    for (size_t i = 0; i < work.lanes; ++i) lanes.push_back(Lane(self, i, work, &left));
    std::vector<Status> results = co_await WhenAll(std::move(lanes));
    for (Status& result : results) CO_RETURN_IF_ERROR(std::move(result));
    co_return OkStatus();
  }

  const std::string path_;
  Runtime server_side_{1}, client_side_{1};
  std::unique_ptr<Transport> server_, client_;
  std::shared_ptr<MemoryRegion> server_region_, client_region_;
  std::unique_ptr<Listener> listener_;
  std::shared_ptr<Peer> peer_;
};

}  // namespace

StatusOr<std::vector<Figure>> MeasureTransport(const std::string& path, uint64_t size, uint64_t count,
                                               const std::function<void(const std::string&)>& show) {
  TransportPair pair(path);
  RETURN_IF_ERROR(pair.Open());
  if (pair.used() != path) {
    return ErrnoError(ENOTSUP, absl::StrFormat("the bytes would take %s, not %s", pair.used(), path));
  }
  const Workload workloads[] = {
      {"echo", CallMemory::kNone, 0, 1, count},
      {"put 4 KiB", CallMemory::kPutTarget, kBlockSize, 1, count},
      {"get 4 KiB", CallMemory::kGetSource, kBlockSize, 1, count},
      {"put 1 MiB", CallMemory::kPutTarget, kLargeCall, 1, size / kLargeCall},
      {"get 1 MiB", CallMemory::kGetSource, kLargeCall, 1, size / kLargeCall},
      {"put 1 MiB, 16 at once", CallMemory::kPutTarget, kLargeCall, kLanes, size / kLargeCall},
      {"get 1 MiB, 16 at once", CallMemory::kGetSource, kLargeCall, kLanes, size / kLargeCall},
  };
  std::vector<Figure> figures;
  for (const Workload& work : workloads) {
    show(work.name);
    ASSIGN_OR_RETURN(Figure figure, pair.Measure(work));
    figures.push_back(std::move(figure));
  }
  return figures;
}

}  // namespace nacre::cli
