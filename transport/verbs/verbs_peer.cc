#include "transport/verbs/verbs_peer.h"

#include <absl/strings/str_format.h>

#include <mutex>
#include <utility>
#include <vector>

#include "common/metrics.h"
#include "transport/memory.h"
#include "transport/tcp/address.h"
#include "transport/tcp/client_connection.h"
#include "transport/verbs/client_link.h"

namespace nacre::verbs {
namespace {

constexpr char kPath[] = "rdma";
constexpr int kAttempts = 3;  // at finding a link that is not just ending

class PeerCore : public std::enable_shared_from_this<PeerCore> {
 public:
  PeerCore(Executor executor, Clock& clock, TcpOptions control, std::shared_ptr<RailSet> rails,
           std::string address, std::shared_ptr<PathMeters> meters)
      : executor_(std::move(executor)),
        clock_(clock),
        control_(std::move(control)),
        rails_(std::move(rails)),
        address_(std::move(address)),
        meters_(std::move(meters)) {}

  static Task<StatusOr<std::string>> Call(std::shared_ptr<PeerCore> self, CallRequest request,
                                          Duration timeout);
  void Close();
  PathInfo path();
  const std::string& address() const { return address_; }

  static Task<Status> AwaitLink(std::shared_ptr<PeerCore> self, Duration deadline);

 private:
  std::shared_ptr<ClientLink> Ready();
  void Forget(const ClientLink* link);
  static Task<void> Fill(std::shared_ptr<PeerCore> self);
  static Task<StatusOr<std::shared_ptr<ClientLink>>> NewLink(std::shared_ptr<PeerCore> self);
  Status NoLink(const Status& why) const {
    return absl::UnavailableError(absl::StrFormat("no RDMA connection to %s: %s", address_, why.message()));
  }
  Status Closed() const {
    return ErrnoError(ENOTCONN, absl::StrFormat("the link to %s is closed", address_));
  }

  const Executor executor_;
  Clock& clock_;
  const TcpOptions control_;
  const std::shared_ptr<RailSet> rails_;
  const std::string address_;
  const std::shared_ptr<PathMeters> meters_;
  std::mutex mutex_;
  bool closed_ = false, connecting_ = false;
  std::shared_ptr<ClientLink> link_;
  std::vector<OneShot<Status>> waiters_;  // for the link
  std::string reason_ = "no call has been made yet";
};

std::shared_ptr<ClientLink> PeerCore::Ready() {
  std::lock_guard lock(mutex_);
  if (link_ != nullptr && link_->closing()) link_ = nullptr;
  return link_;
}

void PeerCore::Forget(const ClientLink* link) {
  std::shared_ptr<ClientLink> ended;
  std::lock_guard lock(mutex_);
  if (link_.get() == link) ended = std::move(link_);
}

PathInfo PeerCore::path() {
  std::vector<PathStats> stats = meters_->Read();
  std::lock_guard lock(mutex_);
  if (link_ != nullptr && !link_->closing()) {
    return {kPath, link_->rail().port().name(), std::move(stats)};
  }
  return {"none", reason_, std::move(stats)};
}

Task<StatusOr<std::string>> PeerCore::Call(std::shared_ptr<PeerCore> self, CallRequest request,
                                           Duration timeout) {
  CO_RETURN_IF_ERROR(CheckCallRequest(request));
  const Duration begin = self->clock_.Now();
  const Duration deadline = DeadlineAfter(begin, timeout);
  auto call = std::make_shared<LinkCall>(std::move(request), deadline);
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    std::shared_ptr<ClientLink> link = self->Ready();
    if (link == nullptr) {
      Status status = co_await AwaitLink(self, deadline);
      if (!status.ok()) co_return status;
      link = self->Ready();
    }
    if (link != nullptr && link->Begin(call)) {
      StatusOr<std::string> reply = co_await ClientLink::Finish(link, call);
      link->meter().Ended(call->request.kind, call->bytes, self->clock_.Now() - begin, reply.status());
      co_return reply;
    }
  }
  co_return ErrnoError(ECONNRESET,
                       absl::StrFormat("%s ends each connection as soon as it is made", self->address_));
}

// Waits for the link, making it if nobody does already.
Task<Status> PeerCore::AwaitLink(std::shared_ptr<PeerCore> self, Duration deadline) {
  const OneShot<Status> done;
  bool make = false;
  {
    std::lock_guard lock(self->mutex_);
    if (self->closed_) co_return self->Closed();
    if (self->link_ != nullptr) co_return OkStatus();
    self->waiters_.push_back(done);
    make = !std::exchange(self->connecting_, true);
  }
  if (make) Spawn(self->executor_, Fill(self));
  auto expire = [done, self] {
    done.Set(ErrnoError(ETIMEDOUT, absl::StrFormat("no RDMA connection to %s in time", self->address_)));
  };
  auto timer = self->clock_.After(self->executor_, deadline - self->clock_.Now(), std::move(expire));
  co_return co_await done.Wait();
}

Task<void> PeerCore::Fill(std::shared_ptr<PeerCore> self) {
  StatusOr<std::shared_ptr<ClientLink>> link = co_await NewLink(self);
  std::vector<OneShot<Status>> waiters;
  bool closed = false;
  {
    std::lock_guard lock(self->mutex_);
    self->connecting_ = false;
    waiters.swap(self->waiters_);
    closed = self->closed_;
    if (link.ok() && !closed) self->link_ = *link;
    if (!link.ok()) self->reason_ = std::string(link.status().message());
  }
  if (link.ok() && closed) (*link)->Shutdown(self->Closed());
  for (const OneShot<Status>& waiter : waiters) waiter.Set(closed ? self->Closed() : link.status());
}

Task<StatusOr<std::shared_ptr<ClientLink>>> PeerCore::NewLink(std::shared_ptr<PeerCore> self) {
  const Duration timeout = self->control_.connect_timeout;
  CO_ASSIGN_OR_RETURN(StreamSocket socket,
                      co_await Dial(self->executor_, self->clock_, self->address_, timeout));
  const uint32_t local_ipv4 = LocalIpv4(socket.native_handle());
  auto control = std::make_shared<ClientConnection>(std::move(socket), self->address_, self->clock_);
  std::string identity = self->control_.identity;
  Status status = co_await control->Greet(std::move(identity), timeout);
  if (!status.ok()) co_return self->NoLink(status);
  StatusOr<std::shared_ptr<Rail>> rail = self->rails_->Choose(std::nullopt, local_ipv4);
  status = rail.status();
  // Here and not at the first call, so that memory that may not be locked leads to another path.
  if (status.ok()) status = self->rails_->regions()->RegisterAll((*rail)->domain());
  if (!status.ok()) {
    control->Shutdown(status);
    co_return self->NoLink(status);
  }
  const std::string name = (*rail)->port().name();
  auto link = std::make_shared<ClientLink>(*std::move(rail), std::move(control), self->rails_->regions(),
                                           self->address_, self->executor_, self->clock_,
                                           self->meters_->Of(kPath, name));
  link->OnEnd([weak = std::weak_ptr(self), raw = link.get()] {
    if (auto self = weak.lock()) self->Forget(raw);
  });
  status = co_await ClientLink::Establish(link, self->rails_, timeout);
  if (!status.ok()) co_return self->NoLink(status);
  GetCounter("transport.verbs.client.connections").Add();
  co_return link;
}

void PeerCore::Close() {
  std::shared_ptr<ClientLink> link;
  std::vector<OneShot<Status>> waiters;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    link = std::move(link_);
    link_ = nullptr;
    waiters.swap(waiters_);
  }
  if (link != nullptr) link->Shutdown(Closed());
  for (const OneShot<Status>& waiter : waiters) waiter.Set(Closed());
}

class VerbsPeer : public Peer {
 public:
  explicit VerbsPeer(std::shared_ptr<PeerCore> core) : core_(std::move(core)) {}
  ~VerbsPeer() override { core_->Close(); }

  Task<StatusOr<std::string>> Call(CallRequest request, Duration timeout) override {
    return PeerCore::Call(core_, std::move(request), timeout);
  }

  PathInfo path() const override { return core_->path(); }
  std::string PathFor(const MemoryRegion& memory) const override {
    return memory.device() == nullptr ? "rdma" : "rdma+gpu";
  }
  std::string address() const override { return core_->address(); }
  void Close() override { core_->Close(); }

 private:
  const std::shared_ptr<PeerCore> core_;
};

}  // namespace

StatusOr<std::shared_ptr<Peer>> MakeVerbsPeer(Executor executor, Clock& clock, TcpOptions control,
                                              std::shared_ptr<RailSet> rails, const std::string& address) {
  RETURN_IF_ERROR(ParseSocketAddress(address).status());
  auto core = std::make_shared<PeerCore>(std::move(executor), clock, std::move(control), std::move(rails),
                                         address, std::make_shared<PathMeters>());
  return std::make_shared<VerbsPeer>(std::move(core));
}

Task<StatusOr<std::shared_ptr<Peer>>> ConnectVerbsPeer(Executor executor, Clock& clock, TcpOptions control,
                                                       std::shared_ptr<RailSet> rails, std::string address,
                                                       Duration timeout, std::shared_ptr<PathMeters> meters) {
  CO_RETURN_IF_ERROR(ParseSocketAddress(address).status());
  auto core = std::make_shared<PeerCore>(executor, clock, std::move(control), std::move(rails), address,
                                         std::move(meters));
  auto peer = std::make_shared<VerbsPeer>(core);
  Status status = co_await PeerCore::AwaitLink(core, DeadlineAfter(clock.Now(), timeout));
  if (!status.ok()) co_return status;
  co_return std::shared_ptr<Peer>(std::move(peer));
}

}  // namespace nacre::verbs
