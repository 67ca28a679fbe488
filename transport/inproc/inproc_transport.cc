#include "transport/inproc/inproc_transport.h"

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>
#include <absl/container/inlined_vector.h>
#include <absl/strings/match.h>
#include <absl/strings/str_format.h>

#include <algorithm>

#include "transport/call_result.h"
#include "transport/memory.h"
#include "transport/memory_device.h"
#include "transport/watchdog.h"

namespace nacre {
namespace {

constexpr absl::string_view kScheme = "inproc:";

using Pieces = absl::InlinedVector<iovec, 8>;

// One call, seen by its caller and by its handler. It ends once: by the reply, the timeout, or the loss of
// either side. Copies are made under the mutex, so that none is in progress when the call has ended.
class InprocCallState {
 public:
  InprocCallState(CallRequest request, Duration deadline)
      : body_(std::move(request.body)),
        kind_(request.kind),
        memory_(std::move(request.memory)),
        size_(memory_.size()),
        deadline_(deadline),
        given_up_(std::move(request.given_up)) {}

  const std::string& body() const { return body_; }
  CallMemory kind() const { return kind_; }
  uint64_t memory_size() const { return size_; }
  Duration deadline() const { return deadline_; }
  bool given_up() const { return IsGivenUp(given_up_); }

  bool End(StatusOr<std::string> result) {
    {
      std::lock_guard lock(mutex_);
      if (ended_) return false;
      ended_ = true;
      memory_ = FlatMemory();
    }
    return result_.Set(std::move(result));
  }

  auto Wait() const { return result_.Wait(); }

  // Of the caller's memory; null: host memory, or the call is over.
  std::shared_ptr<MemoryDevice> device() {
    std::lock_guard lock(mutex_);
    return memory_.device() == nullptr ? nullptr : memory_.spans().front().region->device();
  }

  Task<Status> CopyToDevice(std::shared_ptr<MemoryDevice> device, uint64_t offset, Pieces buffers,
                            uint64_t length) {
    std::vector<iovec> to;
    {
      std::lock_guard lock(mutex_);
      if (ended_) co_return Gone();
      CO_RETURN_IF_ERROR(CheckTransfer(CallMemory::kPutTarget, kind_, size_, offset, length));
      memory_.AppendPieces(offset, length, &to);
      if (!result_.BeginCopy()) co_return Gone();
    }
    std::vector<iovec> from(buffers.begin(), buffers.end());
    const Status copied = co_await device->CopyIn(std::move(to), std::move(from));
    result_.EndCopy(copied);
    co_return copied;
  }

  Status Copy(CallMemory wanted, uint64_t offset, std::span<const iovec> buffers, uint64_t length) {
    std::lock_guard lock(mutex_);
    if (ended_) return Gone();
    RETURN_IF_ERROR(CheckTransfer(wanted, kind_, size_, offset, length));
    Pieces pieces;
    memory_.AppendPieces(offset, length, &pieces);
    if (wanted == CallMemory::kPutTarget) {
      CopyPieces(pieces, buffers);
    } else {
      CopyPieces(buffers, pieces);
    }
    return OkStatus();
  }

  static Status Gone() {
    return ErrnoError(ENOTCONN, "the call is over: its caller has given up or is gone");
  }

 private:
  const std::string body_;
  const CallMemory kind_;
  std::mutex mutex_;
  bool ended_ = false;
  FlatMemory memory_;
  const uint64_t size_;
  const Duration deadline_;
  const GiveUpFlag given_up_;
  CallResult result_;
};

// The calls in progress of a peer or of a listener.
class CallSet {
 public:
  // False when closed.
  bool Add(const std::shared_ptr<InprocCallState>& call) {
    std::lock_guard lock(mutex_);
    if (closed_) return false;
    calls_.insert(call);
    return true;
  }

  void Remove(const std::shared_ptr<InprocCallState>& call) {
    std::lock_guard lock(mutex_);
    calls_.erase(call);
  }

  void Close(const Status& why) {
    absl::flat_hash_set<std::shared_ptr<InprocCallState>> calls;
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
      calls.swap(calls_);
    }
    for (const auto& call : calls) call->End(why);
  }

  // Ends what has expired; the next deadline of the others.
  Duration Expire(Duration now, const std::string& address) {
    std::vector<std::shared_ptr<InprocCallState>> expired;
    Duration next = kNoDeadline;
    {
      std::lock_guard lock(mutex_);
      for (const auto& call : calls_) {
        if (call->deadline() <= now || call->given_up()) {
          expired.push_back(call);
        } else {
          next = std::min(next, call->deadline());
        }
      }
    }
    for (const auto& call : expired) {
      call->End(ErrnoError(ETIMEDOUT, absl::StrFormat("%s did not answer in time", address)));
    }
    return next;
  }

 private:
  std::mutex mutex_;
  bool closed_ = false;
  absl::flat_hash_set<std::shared_ptr<InprocCallState>> calls_;
};

class InprocIncomingCall : public IncomingCall {
 public:
  explicit InprocIncomingCall(std::shared_ptr<InprocCallState> state) : state_(std::move(state)) {}

  ~InprocIncomingCall() override {
    if (!replied_) state_->End(absl::InternalError("the server's handler ended without a reply"));
  }

  const std::string& body() const override { return state_->body(); }
  CallMemory memory_kind() const override { return state_->kind(); }
  uint64_t memory_size() const override { return state_->memory_size(); }

  Task<Status> Put(uint64_t memory_offset, std::span<const std::span<const std::byte>> buffers) override {
    std::shared_ptr<MemoryDevice> device = state_->device();
    if (device == nullptr) co_return Copy(CallMemory::kPutTarget, memory_offset, buffers);
    const uint64_t length = TotalSize(buffers);
    co_return co_await state_->CopyToDevice(std::move(device), memory_offset, ToPieces(buffers), length);
  }

  Task<Status> Get(uint64_t memory_offset, std::span<const std::span<std::byte>> buffers) override {
    co_return Copy(CallMemory::kGetSource, memory_offset, buffers);
  }

  Task<Status> Reply(std::string body) override {
    if (body.size() > kMaxBodySize) {
      co_return ErrnoError(EINVAL, absl::StrFormat("a reply of %d bytes is larger than the limit of %d",
                                                   body.size(), kMaxBodySize));
    }
    replied_ = true;
    co_return state_->End(std::move(body)) ? OkStatus() : InprocCallState::Gone();
  }

 private:
  template <typename Buffers>
  static Pieces ToPieces(const Buffers& buffers) {
    Pieces pieces;
    for (const auto& buffer : buffers) pieces.push_back(ToIovec(buffer));
    return pieces;
  }

  template <typename Buffers>
  Status Copy(CallMemory wanted, uint64_t offset, const Buffers& buffers) {
    return state_->Copy(wanted, offset, ToPieces(buffers), TotalSize(buffers));
  }

  const std::shared_ptr<InprocCallState> state_;
  bool replied_ = false;
};

struct ListenerCore {
  ListenerCore(Executor executor, CallHandler handler)
      : executor(std::move(executor)), handler(std::move(handler)) {}

  // Starts the handler; false when the listener is gone.
  bool Handle(const std::shared_ptr<InprocCallState>& call) {
    std::optional<Task<void>> task;
    {
      std::lock_guard lock(mutex);
      if (!calls.Add(call)) return false;
      task = handler(std::make_shared<InprocIncomingCall>(call));
    }
    Spawn(executor, *std::move(task));
    return true;
  }

  const Executor executor;
  std::mutex mutex;
  CallHandler handler;
  CallSet calls;
};

}  // namespace

class InprocNetwork {
 public:
  Status Add(const std::string& address, const std::shared_ptr<ListenerCore>& core) {
    std::lock_guard lock(mutex_);
    if (!listeners_.emplace(address, core).second) {
      return ErrnoError(EADDRINUSE,
                        absl::StrFormat("cannot listen on %s: another listener has that name", address));
    }
    return OkStatus();
  }

  void Remove(const std::string& address) {
    std::lock_guard lock(mutex_);
    listeners_.erase(address);
  }

  std::shared_ptr<ListenerCore> Find(const std::string& address) {
    std::lock_guard lock(mutex_);
    auto found = listeners_.find(address);
    return found == listeners_.end() ? nullptr : found->second;
  }

 private:
  std::mutex mutex_;
  absl::flat_hash_map<std::string, std::shared_ptr<ListenerCore>> listeners_;
};

namespace {

Status CheckAddress(const std::string& address) {
  if (absl::StartsWith(address, kScheme) && address.size() > kScheme.size()) return OkStatus();
  return ErrnoError(EINVAL,
                    absl::StrFormat("\"%s\" is not an address in this process: write inproc:NAME", address));
}

class InprocListener : public Listener {
 public:
  InprocListener(std::shared_ptr<InprocNetwork> network, std::string address,
                 std::shared_ptr<ListenerCore> core)
      : network_(std::move(network)), address_(std::move(address)), core_(std::move(core)) {}

  ~InprocListener() override {
    network_->Remove(address_);
    std::lock_guard lock(core_->mutex);
    core_->calls.Close(ErrnoError(ECONNRESET, absl::StrFormat("the server at %s has stopped", address_)));
  }

  std::string address() const override { return address_; }

 private:
  const std::shared_ptr<InprocNetwork> network_;
  const std::string address_;
  const std::shared_ptr<ListenerCore> core_;
};

struct PeerCore {
  PeerCore(std::shared_ptr<InprocNetwork> network, std::string address, Clock& clock)
      : network(std::move(network)), address(std::move(address)), clock(clock) {}

  const std::shared_ptr<InprocNetwork> network;
  const std::string address;
  Clock& clock;
  std::shared_ptr<Watchdog> watchdog;
  CallSet calls;
};

Task<StatusOr<std::string>> CallListener(std::shared_ptr<PeerCore> peer, CallRequest request,
                                         Duration timeout) {
  CO_RETURN_IF_ERROR(CheckCallRequest(request));
  if (IsGivenUp(request.given_up)) co_return NotWaitedFor(peer->address);
  Duration deadline = DeadlineAfter(peer->clock.Now(), timeout);
  auto call = std::make_shared<InprocCallState>(std::move(request), deadline);
  if (!peer->calls.Add(call)) {
    co_return ErrnoError(ENOTCONN, absl::StrFormat("the link to %s is closed", peer->address));
  }
  std::shared_ptr<ListenerCore> listener = peer->network->Find(peer->address);
  if (listener == nullptr || !listener->Handle(call)) {
    peer->calls.Remove(call);
    co_return ErrnoError(ECONNREFUSED, absl::StrFormat("nobody listens on %s", peer->address));
  }
  peer->watchdog->Arm(call->given_up() ? kNow : deadline);
  StatusOr<std::string> result = co_await call->Wait();
  peer->calls.Remove(call);
  listener->calls.Remove(call);
  co_return result;
}

class InprocPeer : public Peer {
 public:
  InprocPeer(std::shared_ptr<InprocNetwork> network, std::string address, Executor executor, Clock& clock)
      : core_(std::make_shared<PeerCore>(std::move(network), std::move(address), clock)) {
    core_->watchdog =
        std::make_shared<Watchdog>(std::move(executor), clock, [weak = std::weak_ptr(core_)](Duration now) {
          auto core = weak.lock();
          return core == nullptr ? kNoDeadline : core->calls.Expire(now, core->address);
        });
  }

  ~InprocPeer() override { Close(); }

  Task<StatusOr<std::string>> Call(CallRequest request, Duration timeout) override {
    return CallListener(core_, std::move(request), timeout);
  }

  void EndGivenUp() override { core_->watchdog->Arm(kNow); }

  PathInfo path() const override { return {"inproc", "client and server are one process"}; }
  std::string address() const override { return core_->address; }

  void Close() override {
    core_->calls.Close(ErrnoError(ENOTCONN, absl::StrFormat("the link to %s is closed", core_->address)));
    core_->watchdog->Stop();
  }

 private:
  const std::shared_ptr<PeerCore> core_;
};

class InprocTransport : public Transport {
 public:
  InprocTransport(std::shared_ptr<InprocNetwork> network, Executor executor, Clock& clock)
      : network_(std::move(network)), executor_(std::move(executor)), clock_(clock) {}

  StatusOr<std::shared_ptr<MemoryRegion>> Register(std::byte* data, size_t size) override {
    return RegisterHostMemory(data, size);
  }

  StatusOr<std::shared_ptr<MemoryRegion>> RegisterDevice(std::shared_ptr<MemoryDevice> device,
                                                         std::byte* data, size_t size) override {
    return RegisterDeviceMemory(std::move(device), data, size);
  }

  StatusOr<std::shared_ptr<Peer>> Connect(const std::string& address) override {
    RETURN_IF_ERROR(CheckAddress(address));
    return std::make_shared<InprocPeer>(network_, address, executor_, clock_);
  }

  StatusOr<std::unique_ptr<Listener>> Listen(const std::string& address, CallHandler handler) override {
    RETURN_IF_ERROR(CheckAddress(address));
    auto core = std::make_shared<ListenerCore>(executor_, std::move(handler));
    RETURN_IF_ERROR(network_->Add(address, core));
    return std::make_unique<InprocListener>(network_, address, std::move(core));
  }

 private:
  const std::shared_ptr<InprocNetwork> network_;
  const Executor executor_;
  Clock& clock_;
};

}  // namespace

std::shared_ptr<InprocNetwork> MakeInprocNetwork() { return std::make_shared<InprocNetwork>(); }

std::unique_ptr<Transport> MakeInprocTransport(std::shared_ptr<InprocNetwork> network, Executor executor,
                                               Clock& clock) {
  return std::make_unique<InprocTransport>(std::move(network), std::move(executor), clock);
}

}  // namespace nacre
