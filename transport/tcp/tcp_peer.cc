#include "transport/tcp/tcp_peer.h"

#include <absl/strings/match.h>
#include <absl/strings/str_format.h>

#include <algorithm>
#include <mutex>
#include <vector>

#include "common/log.h"
#include "transport/memory.h"
#include "transport/tcp/client_connection.h"

namespace nacre {
namespace {

constexpr uint64_t kCallLoad = 4096;  // what a call weighs besides its memory
constexpr int kAttempts = 3;          // at finding a connection that is not just ending

// A place for a connection.
struct Lane {
  std::shared_ptr<ClientConnection> connection;
  bool connecting = false;
  std::vector<OneShot<Status>> waiters;  // for the connection
  uint64_t load = 0;                     // bytes of the calls under way
};

Task<StatusOr<std::shared_ptr<ClientConnection>>> DialAndGreet(Executor executor, Clock& clock,
                                                               TcpOptions options, std::string address) {
  const Duration timeout = options.connect_timeout;
  CO_ASSIGN_OR_RETURN(StreamSocket socket, co_await Dial(executor, clock, address, timeout));
  auto connection = std::make_shared<ClientConnection>(std::move(socket), address, clock);
  std::string identity = options.identity;
  Status status = co_await connection->Greet(std::move(identity), timeout);
  if (!status.ok()) {
    co_return absl::UnavailableError(absl::StrFormat("cannot use %s: %s", address, status.message()));
  }
  StreamCounters::Tcp().client_connections.Add();
  co_return connection;
}

class PeerCore : public std::enable_shared_from_this<PeerCore> {
 public:
  PeerCore(Executor executor, Clock& clock, TcpOptions options, std::string address, StreamKind kind,
           std::shared_ptr<PathMeters> meters)
      : executor_(std::move(executor)),
        clock_(clock),
        options_(std::move(options)),
        address_(std::move(address)),
        kind_(std::move(kind)),
        meters_(std::move(meters)),
        meter_(meters_->Of(kind_.path)),
        lanes_(std::max(options_.connections, 1)) {}

  static Task<StatusOr<std::string>> Call(std::shared_ptr<PeerCore> self, CallRequest request,
                                          Duration timeout);
  // Connects one lane, if none is.
  static Task<Status> ConnectNow(std::shared_ptr<PeerCore> self, Duration timeout) {
    return AwaitConnection(self, 0, DeadlineAfter(self->clock_.Now(), timeout), nullptr);
  }
  void EndGivenUp();
  void Close();
  const std::string& address() const { return address_; }
  PathInfo path() const { return {kind_.path, options_.path_reason, meters_->Read()}; }
  std::string PathFor(const MemoryRegion& memory) const {
    if (memory.device() == nullptr) return kind_.path;
    return kind_.path + (kind_.devices_fetch ? "+gpu" : "+staging");
  }

 private:
  // Counts a call's load on a lane while it lasts.
  class LaneUse {
   public:
    LaneUse(PeerCore* core, uint64_t size)
        : core_(core), load_(size + kCallLoad), lane_(core->Choose(size, load_)) {}
    ~LaneUse() {
      std::lock_guard lock(core_->mutex_);
      core_->lanes_[lane_].load -= load_;
    }
    LaneUse(const LaneUse&) = delete;
    LaneUse& operator=(const LaneUse&) = delete;
    size_t lane() const { return lane_; }

   private:
    PeerCore* const core_;
    const uint64_t load_;
    const size_t lane_;
  };

  static Task<StatusOr<std::string>> Carry(std::shared_ptr<PeerCore> self, std::shared_ptr<ClientCall> call);
  size_t Choose(uint64_t size, uint64_t load);
  std::shared_ptr<ClientConnection> Ready(size_t lane);
  static Task<Status> AwaitConnection(std::shared_ptr<PeerCore> self, size_t lane, Duration deadline,
                                      GiveUpFlag given_up);
  static Task<void> FillLane(std::shared_ptr<PeerCore> self, size_t lane);
  Status Closed() const {
    return ErrnoError(ENOTCONN, absl::StrFormat("the link to %s is closed", address_));
  }

  const Executor executor_;
  Clock& clock_;
  const TcpOptions options_;
  const std::string address_;
  const StreamKind kind_;
  const std::shared_ptr<PathMeters> meters_;
  const std::shared_ptr<PathMeter> meter_;
  std::mutex mutex_;
  bool closed_ = false;
  std::vector<Lane> lanes_;
};

// Small calls take the least loaded of the first lanes, large ones of the others.
size_t PeerCore::Choose(uint64_t size, uint64_t load) {
  const size_t count = lanes_.size();
  const size_t small = std::clamp<size_t>(options_.small_connections, count > 1 ? 1 : 0, count - 1);
  const bool is_small = size <= kind_.most_small && small > 0;
  const size_t first = is_small ? 0 : small, last = is_small ? small : count;
  std::lock_guard lock(mutex_);
  size_t best = first;
  for (size_t i = first + 1; i < last; ++i) {
    if (lanes_[i].load < lanes_[best].load) best = i;
  }
  lanes_[best].load += load;
  return best;
}

std::shared_ptr<ClientConnection> PeerCore::Ready(size_t lane) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<ClientConnection>& connection = lanes_[lane].connection;
  if (connection != nullptr && connection->closing()) connection = nullptr;
  return connection;
}

Task<StatusOr<std::string>> PeerCore::Call(std::shared_ptr<PeerCore> self, CallRequest request,
                                           Duration timeout) {
  CO_RETURN_IF_ERROR(CheckCallRequest(request));
  const Duration deadline = DeadlineAfter(self->clock_.Coarse(), timeout);
  auto call = std::make_shared<ClientCall>(std::move(request), deadline);
  const CallTimer timer(self->clock_, call->memory.size());
  StatusOr<std::string> reply = co_await Carry(self, call);
  self->meter_->Ended(call->kind, call->memory.size(), timer.Took(), reply.status());
  co_return reply;
}

Task<StatusOr<std::string>> PeerCore::Carry(std::shared_ptr<PeerCore> self,
                                            std::shared_ptr<ClientCall> call) {
  const LaneUse use(self.get(), call->memory.size());
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    if (IsGivenUp(call->given_up())) co_return NotWaitedFor(self->address_);
    std::shared_ptr<ClientConnection> connection = self->Ready(use.lane());
    if (connection == nullptr) {
      Status status = co_await AwaitConnection(self, use.lane(), call->deadline, call->given_up());
      if (!status.ok()) co_return status;
      connection = self->Ready(use.lane());
    }
    if (connection != nullptr && connection->Begin(call)) co_return co_await call->result.Wait();
  }
  co_return ErrnoError(ECONNRESET,
                       absl::StrFormat("%s ends each connection as soon as it is made", self->address_));
}

// Waits for the lane's connection, making it if nobody does already.
Task<Status> PeerCore::AwaitConnection(std::shared_ptr<PeerCore> self, size_t lane, Duration deadline,
                                       GiveUpFlag given_up) {
  const OneShot<Status> done;
  bool make = false;
  {
    std::lock_guard lock(self->mutex_);
    if (self->closed_) co_return self->Closed();
    if (IsGivenUp(given_up)) co_return NotWaitedFor(self->address_);
    Lane& place = self->lanes_[lane];
    if (place.connection != nullptr) co_return OkStatus();
    place.waiters.push_back(done);
    make = !std::exchange(place.connecting, true);
  }
  if (make) Spawn(self->executor_, FillLane(self, lane));
  auto expire = [done, self] {
    done.Set(ErrnoError(ETIMEDOUT, absl::StrFormat("no connection to %s in time", self->address_)));
  };
  auto timer = self->clock_.After(self->executor_, deadline - self->clock_.Now(), std::move(expire));
  co_return co_await done.Wait();
}

Task<void> PeerCore::FillLane(std::shared_ptr<PeerCore> self, size_t lane) {
  StatusOr<std::shared_ptr<ClientConnection>> connection =
      co_await self->kind_.connect(self->executor_, self->clock_, self->options_, self->address_);
  std::vector<OneShot<Status>> waiters;
  bool closed = false;
  {
    std::lock_guard lock(self->mutex_);
    Lane& place = self->lanes_[lane];
    place.connecting = false;
    waiters.swap(place.waiters);
    closed = self->closed_;
    if (connection.ok() && !closed) place.connection = *connection;
  }
  if (connection.ok() && closed) (*connection)->Shutdown(self->Closed());
  for (const OneShot<Status>& waiter : waiters) waiter.Set(closed ? self->Closed() : connection.status());
}

// Ends every wait for a connection, whether its call is given up or not: a call that is not is tried again.
void PeerCore::EndGivenUp() {
  std::vector<std::shared_ptr<ClientConnection>> connections;
  std::vector<OneShot<Status>> waiters;
  {
    std::lock_guard lock(mutex_);
    for (Lane& lane : lanes_) {
      if (lane.connection != nullptr) connections.push_back(lane.connection);
      waiters.insert(waiters.end(), lane.waiters.begin(), lane.waiters.end());
      lane.waiters.clear();
    }
  }
  for (const auto& connection : connections) connection->EndGivenUp();
  for (const OneShot<Status>& waiter : waiters) waiter.Set(NotWaitedFor(address_));
}

void PeerCore::Close() {
  std::vector<std::shared_ptr<ClientConnection>> connections;
  std::vector<OneShot<Status>> waiters;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    for (Lane& lane : lanes_) {
      if (lane.connection != nullptr) connections.push_back(std::move(lane.connection));
      lane.connection = nullptr;
      waiters.insert(waiters.end(), lane.waiters.begin(), lane.waiters.end());
      lane.waiters.clear();
    }
  }
  for (const auto& connection : connections) connection->Shutdown(Closed());
  for (const OneShot<Status>& waiter : waiters) waiter.Set(Closed());
}

class LanePeer : public StreamPeer {
 public:
  explicit LanePeer(std::shared_ptr<PeerCore> core) : core_(std::move(core)) {}
  ~LanePeer() override { core_->Close(); }

  Task<StatusOr<std::string>> Call(CallRequest request, Duration timeout) override {
    return PeerCore::Call(core_, std::move(request), timeout);
  }
  void EndGivenUp() override { core_->EndGivenUp(); }
  Task<Status> ConnectNow(Duration timeout) override { return PeerCore::ConnectNow(core_, timeout); }
  PathInfo path() const override { return core_->path(); }
  std::string PathFor(const MemoryRegion& memory) const override { return core_->PathFor(memory); }
  std::string address() const override { return core_->address(); }
  void Close() override { core_->Close(); }

 private:
  const std::shared_ptr<PeerCore> core_;
};

}  // namespace

StatusOr<std::shared_ptr<StreamPeer>> MakeStreamPeer(Executor executor, Clock& clock, TcpOptions options,
                                                     std::string address, StreamKind kind,
                                                     std::shared_ptr<PathMeters> meters) {
  RETURN_IF_ERROR(ParseSocketAddress(address).status());
  if (meters == nullptr) meters = std::make_shared<PathMeters>();
  auto core = std::make_shared<PeerCore>(std::move(executor), clock, std::move(options), std::move(address),
                                         std::move(kind), std::move(meters));
  return std::make_shared<LanePeer>(std::move(core));
}

StatusOr<std::shared_ptr<Peer>> MakeTcpPeer(Executor executor, Clock& clock, TcpOptions options,
                                            std::string address, std::shared_ptr<PathMeters> meters) {
  StreamKind kind{absl::StartsWith(address, "unix:") ? "unix" : "tcp", false, kMaxEagerSize, DialAndGreet};
  return MakeStreamPeer(std::move(executor), clock, std::move(options), std::move(address), std::move(kind),
                        std::move(meters));
}

Task<StatusOr<Hello>> AskForHello(Executor executor, Clock& clock, TcpOptions options, std::string address) {
  CO_ASSIGN_OR_RETURN(
      std::shared_ptr<ClientConnection> connection,
      co_await DialAndGreet(std::move(executor), clock, std::move(options), std::move(address)));
  Hello hello = connection->server();
  connection->Shutdown(absl::CancelledError("it has said what was asked"));
  co_return hello;
}

}  // namespace nacre
