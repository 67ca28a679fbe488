#include "transport/verbs/verbs_peer.h"

#include <absl/container/inlined_vector.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/log.h"
#include "common/metrics.h"
#include "transport/memory.h"
#include "transport/tcp/address.h"
#include "transport/tcp/client_connection.h"
#include "transport/verbs/client_link.h"
#include "transport/verbs/rail_plan.h"

namespace nacre::verbs {
namespace {

constexpr char kPath[] = "rdma";
constexpr size_t kAttempts = 3;                               // at finding a link that is not just ending
constexpr uint64_t kCallLoad = 4096;                          // what a call weighs besides its memory
constexpr Duration kLookInterval = std::chrono::seconds(30);  // for rails that are new
constexpr Duration kFirstPause = std::chrono::seconds(1);     // before a rail that was lost is tried again
constexpr Duration kLongestPause = std::chrono::minutes(10);  // it doubles while one does not work

// A connection to the server's control address, and the addresses of its ends.
struct Control {
  std::shared_ptr<ClientConnection> connection;
  uint32_t local_ipv4 = 0, remote_ipv4 = 0;
};

// Counts a call as load of its rail and link while it lasts.
class LoadOf {
 public:
  LoadOf(ClientLink& link, uint64_t bytes) : link_(link), bytes_(bytes + kCallLoad) {
    link_.load().fetch_add(bytes_, std::memory_order_relaxed);
    link_.rail().load().fetch_add(bytes_, std::memory_order_relaxed);
  }
  ~LoadOf() {
    link_.load().fetch_sub(bytes_, std::memory_order_relaxed);
    link_.rail().load().fetch_sub(bytes_, std::memory_order_relaxed);
  }
  LoadOf(const LoadOf&) = delete;
  LoadOf& operator=(const LoadOf&) = delete;

 private:
  ClientLink& link_;
  const uint64_t bytes_;
};

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
  void EndGivenUp();
  void Close();
  PathInfo path();
  bool connected();
  const std::string& address() const { return address_; }

  // Waits for a rail, making one if nobody does already.
  static Task<Status> AwaitRail(std::shared_ptr<PeerCore> self, Duration deadline, GiveUpFlag given_up);

 private:
  using Links = absl::InlinedVector<std::shared_ptr<ClientLink>, kMaxRails>;

  static Task<StatusOr<std::string>> Carry(std::shared_ptr<PeerCore> self, std::shared_ptr<ClientLink> link,
                                           std::shared_ptr<LinkCall> call);
  std::shared_ptr<ClientLink> Choose(const LinkCall& call, const Links& refused);
  void LookIfDue(Duration now);
  static Task<void> Look(std::shared_ptr<PeerCore> self);
  bool EndLook(Status status);
  void LookLater(bool found_all);  // under mutex_
  static Task<Status> AddRails(std::shared_ptr<PeerCore> self);
  static Task<StatusOr<Control>> Greet(std::shared_ptr<PeerCore> self);
  StatusOr<std::vector<RailPair>> Plan(const Control& control);
  bool Misses(const std::string& rail);
  static Task<Status> AddRail(std::shared_ptr<PeerCore> self, std::shared_ptr<ClientConnection> control,
                              RailPair pair);
  Status Add(const std::shared_ptr<ClientLink>& link);
  void Forget(ClientLink* link);
  bool HasOtherWay(const ClientLink* link);
  Links Living() const;  // under mutex_
  Status NoRail(const Status& why) const {
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
  mutable std::mutex mutex_;
  bool closed_ = false, looking_ = false;
  Links links_;                                       // one for each rail
  std::set<std::string> lost_;                        // rails that were there and may come back soon
  std::vector<OneShot<Status>> waiters_;              // for the first
  size_t asked_ = 0;                                  // of these, those who waited when the look began
  std::atomic<Duration> look_at_ = Duration::zero();  // set under mutex_
  Duration pause_ = kFirstPause;
  std::string reason_ = "no call has been made yet";
};

PeerCore::Links PeerCore::Living() const {
  Links living;
  for (const auto& link : links_) {
    if (!link->closing()) living.push_back(link);
  }
  return living;
}

// The link for the call, but none of these; null: there is none.
std::shared_ptr<ClientLink> PeerCore::Choose(const LinkCall& call, const Links& refused) {
  Links links;
  {
    std::lock_guard lock(mutex_);
    const bool only_one = links_.size() == 1 && refused.empty();
    if (only_one) return links_.front()->closing() ? nullptr : links_.front();
    links = Living();
  }
  auto is_refused = [&](const auto& link) { return std::count(refused.begin(), refused.end(), link) > 0; };
  links.erase(std::remove_if(links.begin(), links.end(), is_refused), links.end());
  auto stuck = [](const auto& link) { return link->stuck() > Duration::zero(); };
  if (!std::all_of(links.begin(), links.end(), stuck)) {
    links.erase(std::remove_if(links.begin(), links.end(), stuck), links.end());
  }
  if (links.size() <= 1) return links.empty() ? nullptr : links.front();
  absl::InlinedVector<RailLoad, kMaxRails> loads;
  bool several_nodes = false;
  for (const auto& link : links) {
    loads.push_back({link->rail().load().load(std::memory_order_relaxed), link->rail().port().numa_node,
                     link->load().load(std::memory_order_relaxed)});
    several_nodes = several_nodes || loads.back().numa_node != loads.front().numa_node;
  }
  return links[ChooseRail(loads, several_nodes ? NumaNodeOf(call.request.memory) : -1)];
}

PathInfo PeerCore::path() {
  std::vector<PathStats> stats = meters_->Read();
  std::lock_guard lock(mutex_);
  const Links links = Living();
  if (links.empty()) return {"none", reason_, std::move(stats)};
  auto name = [](std::string* text, const auto& link) { text->append(link->meter().rail()); };
  return {kPath, absl::StrJoin(links, ", ", name), std::move(stats)};
}

bool PeerCore::connected() {
  std::lock_guard lock(mutex_);
  return !Living().empty();
}

Task<StatusOr<std::string>> PeerCore::Call(std::shared_ptr<PeerCore> self, CallRequest request,
                                           Duration timeout) {
  CO_RETURN_IF_ERROR(CheckCallRequest(request));
  const Duration begin = self->clock_.Coarse();
  const Duration deadline = DeadlineAfter(begin, timeout);
  auto call = std::make_shared<LinkCall>(std::move(request), deadline);
  const CallTimer timer(self->clock_, call->bytes);
  Links refused;  // the devices of these do not reach the call's memory
  Status refusal;
  for (size_t attempt = 0; attempt < kAttempts + refused.size(); ++attempt) {
    if (call->given_up()) co_return NotWaitedFor(self->address_);
    std::shared_ptr<ClientLink> link = self->Choose(*call, refused);
    if (link == nullptr && !refused.empty()) co_return refusal;
    if (link == nullptr) {
      Status status = co_await AwaitRail(self, deadline, call->request.given_up);
      if (!status.ok()) co_return status;
      link = self->Choose(*call, refused);
    } else {
      self->LookIfDue(begin);
    }
    if (link == nullptr) continue;
    StatusOr<std::string> reply = co_await Carry(self, link, call);
    const bool unreachable = !call->sent && ToErrno(reply.status()) == ENOTSUP;
    const bool moves = unreachable || (!call->sent && absl::IsUnavailable(reply.status()));
    if (!moves) {
      link->meter().Ended(call->request.kind, call->bytes, timer.Took(), reply.status());
      co_return reply;
    }
    link->meter().Moved();
    if (unreachable) refused.push_back(std::move(link));
    if (unreachable) refusal = reply.status();
    call = std::make_shared<LinkCall>(std::move(call->request), deadline);
  }
  co_return ErrnoError(ECONNRESET,
                       absl::StrFormat("%s ends each connection as soon as it is made", self->address_));
}

Task<StatusOr<std::string>> PeerCore::Carry(std::shared_ptr<PeerCore> self, std::shared_ptr<ClientLink> link,
                                            std::shared_ptr<LinkCall> call) {
  const LoadOf load(*link, call->bytes);
  std::vector<MemoryKeys> keys;
  std::optional<PutBudget::Share> share;
  auto beginning = ClientLink::Beginning::kUnregistered;
  for (int attempt = 0; attempt < 2 && beginning == ClientLink::Beginning::kUnregistered; ++attempt) {
    if (attempt > 0) {
      share.reset();  // others may have it meanwhile
      std::vector<MemorySpan> memory = call->request.memory;
      CO_ASSIGN_OR_RETURN(keys, co_await RailSet::RegisterMemory(self->rails_, link->rail().domain(),
                                                                 std::move(memory), call->deadline));
    }
    if (call->reserves()) {
      CO_ASSIGN_OR_RETURN(PutBudget::Share granted, co_await ClientLink::Reserve(link, call));
      share.emplace(std::move(granted));
    }
    beginning = link->Begin(call);
  }
  if (beginning != ClientLink::Beginning::kBegun)
    co_return absl::UnavailableError("the RDMA connection has ended");
  StatusOr<std::string> result = co_await call->result.Wait();
  if (call->holds_memory()) {
    CO_RETURN_IF_ERROR(co_await ClientLink::TakeMemoryBack(link, call, result.ok()));
  }
  co_return result;
}

Task<Status> PeerCore::AwaitRail(std::shared_ptr<PeerCore> self, Duration deadline, GiveUpFlag given_up) {
  const OneShot<Status> done;
  bool look = false;
  {
    std::lock_guard lock(self->mutex_);
    if (self->closed_) co_return self->Closed();
    if (IsGivenUp(given_up)) co_return NotWaitedFor(self->address_);
    if (!self->Living().empty()) co_return OkStatus();
    self->waiters_.push_back(done);
    look = !std::exchange(self->looking_, true);
  }
  if (look) Spawn(self->executor_, Look(self));
  auto expire = [done, self] {
    done.Set(ErrnoError(ETIMEDOUT, absl::StrFormat("no RDMA connection to %s in time", self->address_)));
  };
  auto timer = self->clock_.After(self->executor_, deadline - self->clock_.Now(), std::move(expire));
  co_return co_await done.Wait();
}

// For rails that are missing or new, beside the calls.
void PeerCore::LookIfDue(Duration now) {
  if (now < look_at_.load(std::memory_order_relaxed)) return;
  {
    std::lock_guard lock(mutex_);
    if (closed_ || looking_) return;
    looking_ = true;
  }
  Spawn(executor_, Look(shared_from_this()));
}

Task<void> PeerCore::Look(std::shared_ptr<PeerCore> self) {
  for (bool again = true; again;) {
    {
      std::lock_guard lock(self->mutex_);
      self->asked_ = self->waiters_.size();
    }
    Status status = co_await AddRails(self);
    again = self->EndLook(std::move(status));
  }
}

// True: look again, for those who have begun to wait since. Their answer may be there by now.
bool PeerCore::EndLook(Status status) {
  std::vector<OneShot<Status>> waiters;
  bool again = false;
  {
    std::lock_guard lock(mutex_);
    LookLater(status.ok());
    if (!status.ok()) reason_ = std::string(status.message());
    if (!Living().empty()) status = OkStatus();
    if (closed_) status = Closed();
    again = !status.ok() && !closed_ && waiters_.size() > asked_;
    looking_ = again;
    waiters.swap(waiters_);
    if (again) waiters_.assign(waiters.begin() + static_cast<ptrdiff_t>(asked_), waiters.end());
    if (again) waiters.resize(asked_);
  }
  for (const OneShot<Status>& waiter : waiters) waiter.Set(status);
  return again;
}

// Lost ports are expected back at first, and looked for as often as any new ones as long as they may be.
void PeerCore::LookLater(bool found_all) {
  if (found_all && pause_ >= kLookInterval) lost_.clear();
  const bool complete = found_all && lost_.empty();
  look_at_ = clock_.Now() + (complete ? kLookInterval : pause_);
  pause_ = complete ? kFirstPause : std::min(2 * pause_, lost_.empty() ? kLongestPause : kLookInterval);
}

// OK: all rails are there that there can be now.
Task<Status> PeerCore::AddRails(std::shared_ptr<PeerCore> self) {
  CO_ASSIGN_OR_RETURN(Control control, co_await Greet(self));
  StatusOr<std::vector<RailPair>> pairs = self->Plan(control);
  Status status = pairs.status();
  for (size_t i = 0; pairs.ok() && i < pairs->size(); ++i) {
    RailPair pair = (*pairs)[i];
    if (!self->Misses(pair.name())) continue;
    if (control.connection == nullptr) {
      StatusOr<Control> another = co_await Greet(self);
      if (!another.ok()) co_return another.status();
      control = *std::move(another);
    }
    std::shared_ptr<ClientConnection> connection = std::exchange(control.connection, nullptr);
    Status added = co_await AddRail(self, std::move(connection), std::move(pair));
    if (!added.ok()) status = added;
  }
  if (control.connection != nullptr) control.connection->Shutdown(absl::CancelledError("no rail is missing"));
  co_return status.ok() ? status : self->NoRail(status);
}

Task<StatusOr<Control>> PeerCore::Greet(std::shared_ptr<PeerCore> self) {
  const Duration timeout = self->control_.connect_timeout;
  CO_ASSIGN_OR_RETURN(StreamSocket socket,
                      co_await Dial(self->executor_, self->clock_, self->address_, timeout));
  Control control;
  control.local_ipv4 = LocalIpv4(socket.native_handle());
  control.remote_ipv4 = RemoteIpv4(socket.native_handle());
  control.connection = std::make_shared<ClientConnection>(std::move(socket), self->address_, self->clock_);
  std::string identity = self->control_.identity;
  Status status = co_await control.connection->Greet(std::move(identity), timeout);
  if (!status.ok()) co_return self->NoRail(status);
  co_return control;
}

StatusOr<std::vector<RailPair>> PeerCore::Plan(const Control& control) {
  ASSIGN_OR_RETURN(std::vector<PortInfo> local, rails_->Ports());
  std::vector<RemotePort> remote;
  for (const PathOffer& offer : control.connection->server().offers) {
    if (offer.path != kPortOffer) continue;
    ASSIGN_OR_RETURN(const RemotePort port, ParsePort(offer.where));
    remote.push_back(port);
  }
  std::vector<RailPair> pairs =
      PlanRails(std::move(local), std::move(remote), control.local_ipv4, control.remote_ipv4);
  if (!pairs.empty()) return pairs;
  return absl::UnavailableError("none of its RDMA ports is of the kind of one of ours");
}

bool PeerCore::Misses(const std::string& rail) {
  std::lock_guard lock(mutex_);
  if (closed_) return false;
  const Links links = Living();
  return std::none_of(links.begin(), links.end(),
                      [&](const auto& link) { return link->meter().rail() == rail; });
}

Task<Status> PeerCore::AddRail(std::shared_ptr<PeerCore> self, std::shared_ptr<ClientConnection> control,
                               RailPair pair) {
  StatusOr<std::shared_ptr<Rail>> rail = self->rails_->Open(pair.local);
  Status status = rail.status();
  // Here and not at the first call, so that memory that may not be locked leads to another path.
  if (status.ok()) status = co_await RailSet::RegisterOwn(self->rails_, *rail);
  if (!status.ok()) {
    control->Shutdown(status);
    co_return status;
  }
  auto link = std::make_shared<ClientLink>(*std::move(rail), std::move(control), self->rails_->regions(),
                                           self->address_, self->executor_, self->clock_,
                                           self->meters_->Of(kPath, pair.name()));
  link->OnEnd([weak = std::weak_ptr(self), raw = link.get()] {
    if (auto self = weak.lock()) self->Forget(raw);
  });
  link->OnStuck([weak = std::weak_ptr(self), raw = link.get()] {
    auto self = weak.lock();
    return self != nullptr && self->HasOtherWay(raw);
  });
  status = co_await ClientLink::Establish(link, self->rails_, pair.remote, self->control_.connect_timeout);
  if (status.ok()) co_return self->Add(link);
  LogDebug("data plane: no rail %s for %s: %s", pair.name(), self->address_, status.message());
  co_return status;
}

Status PeerCore::Add(const std::shared_ptr<ClientLink>& link) {
  static Counter& connections = GetCounter("transport.verbs.client.connections");
  std::vector<OneShot<Status>> waiters;
  bool closed = false;
  {
    std::lock_guard lock(mutex_);
    closed = closed_;
    if (!closed) connections.Add();
    if (!closed) links_.push_back(link);
    lost_.erase(link->meter().rail());
    if (!closed) waiters.swap(waiters_);
    asked_ = 0;  // whoever waits from now on has come after the look began
  }
  if (closed) link->Shutdown(Closed());
  if (link->closing()) Forget(link.get());  // it may have ended before it was there
  if (closed) return Closed();
  for (const OneShot<Status>& waiter : waiters) waiter.Set(OkStatus());
  return OkStatus();
}

void PeerCore::Forget(ClientLink* link) {
  std::shared_ptr<ClientLink> ended;
  std::lock_guard lock(mutex_);
  auto found =
      std::find_if(links_.begin(), links_.end(), [&](const auto& known) { return known.get() == link; });
  if (found == links_.end()) return;
  ended = std::move(*found);
  links_.erase(found);
  lost_.insert(link->meter().rail());
  pause_ = kFirstPause;
  look_at_ = std::min(look_at_.load(), clock_.Now() + kFirstPause);
}

bool PeerCore::HasOtherWay(const ClientLink* link) {
  std::lock_guard lock(mutex_);
  const Links links = Living();
  return std::any_of(links.begin(), links.end(), [&](const auto& other) {
    return other.get() != link && other->stuck() == Duration::zero();
  });
}

void PeerCore::EndGivenUp() {
  Links links;
  std::vector<OneShot<Status>> waiters;
  {
    std::lock_guard lock(mutex_);
    links = links_;
    waiters.swap(waiters_);
    asked_ = 0;
  }
  for (const auto& link : links) link->EndGivenUp();
  for (const OneShot<Status>& waiter : waiters) waiter.Set(NotWaitedFor(address_));
}

void PeerCore::Close() {
  Links links;
  std::vector<OneShot<Status>> waiters;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    links.swap(links_);
    waiters.swap(waiters_);
  }
  for (const auto& link : links) link->Shutdown(Closed());
  for (const OneShot<Status>& waiter : waiters) waiter.Set(Closed());
}

class VerbsPeer : public Peer {
 public:
  explicit VerbsPeer(std::shared_ptr<PeerCore> core) : core_(std::move(core)) {}
  ~VerbsPeer() override { core_->Close(); }

  Task<StatusOr<std::string>> Call(CallRequest request, Duration timeout) override {
    return PeerCore::Call(core_, std::move(request), timeout);
  }

  void EndGivenUp() override { core_->EndGivenUp(); }
  PathInfo path() const override { return core_->path(); }
  std::string PathFor(const MemoryRegion& memory) const override {
    return absl::StrCat(kPath, memory.device() == nullptr ? "" : "+gpu");
  }
  bool connected() const override { return core_->connected(); }
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
  Status status = co_await PeerCore::AwaitRail(core, DeadlineAfter(clock.Now(), timeout), nullptr);
  if (!status.ok()) co_return status;
  co_return std::shared_ptr<Peer>(std::move(peer));
}

}  // namespace nacre::verbs
