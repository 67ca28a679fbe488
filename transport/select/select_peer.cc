#include "transport/select/select_peer.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "common/log.h"
#include "transport/memory.h"
#include "transport/memory_device.h"
#include "transport/tcp/tcp_peer.h"
#include "transport/watchdog.h"

namespace nacre {
namespace {

// A way that calls can take: a candidate's peer, or TCP's (rank: the number of candidates).
struct Way {
  std::shared_ptr<Peer> peer;
  size_t rank = 0;
};

// The result of one look at the candidates.
struct Choice {
  Status status = OkStatus();  // not OK: there is no way
  Way way;
  std::vector<std::string> refused;  // the better ones, each with why not
  bool hopeful = false;              // one of these may work later
};

bool Offers(const Hello& hello, const std::string& path) {
  return std::any_of(hello.offers.begin(), hello.offers.end(),
                     [&](const PathOffer& offer) { return offer.path == path; });
}

class SelectCore : public std::enable_shared_from_this<SelectCore> {
 public:
  SelectCore(Executor executor, Clock& clock, std::shared_ptr<const SelectOptions> options,
             std::shared_ptr<StagingRegions> staging, std::shared_ptr<PathMeters> meters,
             std::shared_ptr<Peer> tcp)
      : executor_(std::move(executor)),
        clock_(clock),
        options_(std::move(options)),
        staging_(std::move(staging)),
        meters_(std::move(meters)),
        tcp_(std::move(tcp)),
        address_(tcp_->address()) {}

  static Task<StatusOr<std::string>> Call(std::shared_ptr<SelectCore> self, CallRequest request,
                                          Duration timeout);
  PathInfo path() const;
  std::string PathFor(const MemoryRegion& memory) const;
  const std::string& address() const { return address_; }
  void EndGivenUp();
  void Close();

 private:
  Way Chosen();
  static Task<StatusOr<Way>> AwaitChoice(std::shared_ptr<SelectCore> self, Duration deadline,
                                         GiveUpFlag given_up);
  static Task<void> Select(std::shared_ptr<SelectCore> self, size_t better_than);
  static Task<Choice> Choose(std::shared_ptr<SelectCore> self, size_t better_than);
  static Task<StatusOr<std::shared_ptr<Peer>>> Try(std::shared_ptr<SelectCore> self, size_t rank,
                                                   Hello hello);
  Choice FallBack(Choice choice, bool may_change) const;
  void Finish(Choice choice);
  void Lost(const Way& way, const Status& why);
  std::optional<std::vector<MemorySpan>> Translate(const Way& way,
                                                   const std::vector<MemorySpan>& memory) const;
  static Task<StatusOr<std::string>> CallBy(std::shared_ptr<SelectCore> self, Way way, CallRequest request,
                                            Duration deadline);
  static Task<StatusOr<std::string>> CallOver(std::shared_ptr<SelectCore> self, Way way, CallRequest request,
                                              Duration deadline);
  static Task<StatusOr<std::string>> CallStaged(std::shared_ptr<SelectCore> self, Way way,
                                                CallRequest request, Duration deadline);
  static Task<StatusOr<std::string>> CallHost(std::shared_ptr<SelectCore> self, Way way, CallRequest request,
                                              Duration deadline);
  static Task<StatusOr<std::string>> CallDevice(std::shared_ptr<SelectCore> self, Way way,
                                                CallRequest request, Duration deadline);
  static void Mark(const std::vector<MemorySpan>& memory, WayIn way_in);
  void NoteRefused(const std::string& memory, std::string how);
  void NoteDevice(const std::vector<MemorySpan>& memory, const Way& way, WayIn way_in, const Status& refusal);

  size_t tcp_rank() const { return options_->candidates.size(); }
  std::string NameOf(size_t rank) const {
    return rank == tcp_rank() ? "tcp" : options_->candidates[rank]->name();
  }
  std::string Reason(const std::vector<std::string>& refused) const;
  Status Closed() const {
    return ErrnoError(ENOTCONN, absl::StrFormat("the link to %s is closed", address_));
  }

  const Executor executor_;
  Clock& clock_;
  const std::shared_ptr<const SelectOptions> options_;
  const std::shared_ptr<StagingRegions> staging_;
  const std::shared_ptr<PathMeters> meters_;  // of all ways
  const std::shared_ptr<Peer> tcp_;
  const std::string address_;
  mutable std::mutex mutex_;
  bool closed_ = false;
  bool selecting_ = false;
  std::set<size_t> offered_;                            // at some time; only for the one Select that runs
  Way way_;                                             // no peer: none is chosen
  PathInfo info_{"none", "no call has been made yet"};  // without stats
  std::map<std::string, std::string> refused_;  // memory that the way does not reach: what instead, and why
  Duration look_again_ = Duration::zero();
  bool hopeful_ = false;  // a better way may be there later: it was not refused for good
  std::vector<OneShot<Status>> waiters_;
};

Task<StatusOr<std::string>> SelectCore::Call(std::shared_ptr<SelectCore> self, CallRequest request,
                                             Duration timeout) {
  CO_RETURN_IF_ERROR(CheckCallRequest(request));
  const Duration deadline = DeadlineAfter(self->clock_.Coarse(), timeout);
  Way way = self->Chosen();
  if (way.peer == nullptr) {
    CO_ASSIGN_OR_RETURN(way, co_await AwaitChoice(self, deadline, request.given_up));
  }
  if (request.memory.empty())
    co_return co_await CallOver(std::move(self), std::move(way), std::move(request), deadline);
  if (request.memory.front().region->device() == nullptr)
    co_return co_await CallHost(std::move(self), std::move(way), std::move(request), deadline);
  co_return co_await CallDevice(std::move(self), std::move(way), std::move(request), deadline);
}

// Over TCP what the way does not reach: memory that may not be locked, for instance.
Task<StatusOr<std::string>> SelectCore::CallHost(std::shared_ptr<SelectCore> self, Way way,
                                                 CallRequest request, Duration deadline) {
  if (way.rank == self->tcp_rank() || !self->options_->fall_back)
    co_return co_await CallOver(std::move(self), std::move(way), std::move(request), deadline);
  CallRequest again = request;
  auto reply = co_await CallOver(self, way, std::move(request), deadline);
  if (ToErrno(reply.status()) != ENOTSUP) {
    Mark(again.memory, WayIn::kDirect);  // it may have taken TCP before
    co_return reply;
  }
  way = Way{self->tcp_, self->tcp_rank()};
  Mark(again.memory, WayIn::kTcp);
  self->NoteRefused(
      "", absl::StrFormat("to some memory over %s: %s", self->NameOf(way.rank), reply.status().message()));
  co_return co_await CallOver(std::move(self), std::move(way), std::move(again), deadline);
}

// Directly, else by way of host memory over the same path, else over TCP.
Task<StatusOr<std::string>> SelectCore::CallDevice(std::shared_ptr<SelectCore> self, Way way,
                                                   CallRequest request, Duration deadline) {
  const std::vector<MemorySpan> memory = std::move(request.memory);
  Status refusal = ErrnoError(ENOTSUP, "the path does not reach the memory of devices");
  if (auto own = self->Translate(way, memory)) {
    CallRequest direct = request;
    direct.memory = *std::move(own);
    auto reply = co_await CallBy(self, way, std::move(direct), deadline);
    refusal = ToErrno(reply.status()) == ENOTSUP ? reply.status() : OkStatus();
    if (refusal.ok()) self->NoteDevice(memory, way, WayIn::kDirect, refusal);
    if (refusal.ok() || way.rank == self->tcp_rank()) co_return reply;
  }
  request.memory = memory;
  CallRequest staged = request;
  auto reply = co_await CallStaged(self, way, std::move(staged), deadline);
  if (ToErrno(reply.status()) != ENOTSUP) {
    self->NoteDevice(memory, way, WayIn::kStaged, refusal);
    co_return reply;
  }
  refusal = ErrnoError(ENOTSUP, absl::StrFormat("%s; over %s and host memory neither: %s", refusal.message(),
                                                self->NameOf(way.rank), reply.status().message()));
  if (!self->options_->fall_back) co_return refusal;
  way = Way{self->tcp_, self->tcp_rank()};
  self->NoteDevice(memory, way, WayIn::kTcp, refusal);
  co_return co_await CallOver(std::move(self), std::move(way), std::move(request), deadline);
}

// ENOTSUP: that cannot be done; nothing was sent.
Task<StatusOr<std::string>> SelectCore::CallStaged(std::shared_ptr<SelectCore> self, Way way,
                                                   CallRequest request, Duration deadline) {
  CO_ASSIGN_OR_RETURN(StagedMemory staged,
                      co_await StagedMemory::Take(self->staging_.get(), std::move(request.memory)));
  auto own = self->Translate(way, staged.spans());
  if (!own) co_return ErrnoError(ENOTSUP, "staging buffers could not be registered");
  request.memory = *std::move(own);
  auto reply = co_await CallBy(std::move(self), std::move(way), std::move(request), deadline);
  if (reply.ok()) CO_RETURN_IF_ERROR(co_await staged.Deliver());
  co_return reply;
}

Task<StatusOr<std::string>> SelectCore::CallOver(std::shared_ptr<SelectCore> self, Way way,
                                                 CallRequest request, Duration deadline) {
  if (auto own = self->Translate(way, request.memory)) {
    request.memory = *std::move(own);
  } else if (self->options_->fall_back) {
    way = Way{self->tcp_, self->tcp_rank()};
  } else {
    co_return ErrnoError(
        ENOTSUP, absl::StrFormat("the call's memory could not be registered for %s", self->NameOf(way.rank)));
  }
  co_return co_await CallBy(std::move(self), std::move(way), std::move(request), deadline);
}

// With the way's own memory.
Task<StatusOr<std::string>> SelectCore::CallBy(std::shared_ptr<SelectCore> self, Way way, CallRequest request,
                                               Duration deadline) {
  auto reply = co_await way.peer->Call(std::move(request), deadline - self->clock_.Coarse());
  if (absl::IsUnavailable(reply.status()) && !way.peer->connected()) self->Lost(way, reply.status());
  co_return reply;
}

// The same memory as the way's transport has registered it. Nothing: it could not register some of it.
std::optional<std::vector<MemorySpan>> SelectCore::Translate(const Way& way,
                                                             const std::vector<MemorySpan>& memory) const {
  if (way.rank == tcp_rank()) return memory;
  std::vector<MemorySpan> own;
  own.reserve(memory.size());
  const MemoryRegion* last = nullptr;
  std::shared_ptr<MemoryRegion> part;  // of the last one
  for (const MemorySpan& span : memory) {
    if (span.region.get() != last) {
      last = span.region.get();
      auto* region = dynamic_cast<SelectRegion*>(span.region.get());
      part = region == nullptr ? nullptr : region->part(way.rank);
      if (part == nullptr) return std::nullopt;
    }
    own.push_back({part, span.offset, span.length});
  }
  return own;
}

void SelectCore::Mark(const std::vector<MemorySpan>& memory, WayIn way_in) {
  const MemoryRegion* last = nullptr;
  for (const MemorySpan& span : memory) {
    if (span.region.get() == last) continue;
    last = span.region.get();
    if (auto* region = dynamic_cast<SelectRegion*>(span.region.get())) region->SetWayIn(way_in);
  }
}

// After a call with a device's memory: how its bytes get there, and what was in the way of a better one.
void SelectCore::NoteDevice(const std::vector<MemorySpan>& memory, const Way& way, WayIn way_in,
                            const Status& refusal) {
  Mark(memory, way_in);
  const MemoryDevice& device = *memory.front().region->device();
  if (refusal.ok()) {
    std::lock_guard lock(mutex_);
    if (!refused_.empty()) refused_.erase(device.name());
    return;
  }
  const std::string name = device.name();
  NoteRefused(
      name, absl::StrFormat("to %s over %s and host memory: %s", name, NameOf(way.rank), refusal.message()));
}

void SelectCore::NoteRefused(const std::string& memory, std::string how) {
  std::lock_guard lock(mutex_);
  auto [known, fresh] = refused_.try_emplace(memory, how);
  if (fresh) LogInfo("data plane: from %s %s", address_, how);
  if (!fresh) known->second = std::move(how);
}

// No peer: none is chosen. Looks for a better one now and then.
Way SelectCore::Chosen() {
  Way way;
  bool look = false;
  {
    std::lock_guard lock(mutex_);
    if (closed_) return way;
    way = way_;
    look = way.peer != nullptr && hopeful_ && !selecting_ && clock_.Coarse() >= look_again_;
    selecting_ = selecting_ || look;
  }
  if (look) Spawn(executor_, Select(shared_from_this(), way.rank));
  return way;
}

Task<StatusOr<Way>> SelectCore::AwaitChoice(std::shared_ptr<SelectCore> self, Duration deadline,
                                            GiveUpFlag given_up) {
  const OneShot<Status> done;
  bool start = false;
  {
    std::lock_guard lock(self->mutex_);
    if (self->closed_) co_return self->Closed();
    if (IsGivenUp(given_up)) co_return NotWaitedFor(self->address_);
    if (self->way_.peer != nullptr) co_return self->way_;
    self->waiters_.push_back(done);
    start = !std::exchange(self->selecting_, true);
  }
  if (start) Spawn(self->executor_, Select(self, self->tcp_rank() + 1));
  auto expire = [done, self] {
    done.Set(ErrnoError(ETIMEDOUT, absl::StrFormat("no connection to %s in time", self->address_)));
  };
  auto timer = self->clock_.After(self->executor_, deadline - self->clock_.Now(), std::move(expire));
  CO_RETURN_IF_ERROR(co_await done.Wait());
  std::lock_guard lock(self->mutex_);
  if (self->way_.peer != nullptr) co_return self->way_;
  co_return ErrnoError(ECONNRESET, absl::StrFormat("lost the connection to %s", self->address_));
}

Task<void> SelectCore::Select(std::shared_ptr<SelectCore> self, size_t better_than) {
  Choice choice = co_await Choose(self, better_than);
  self->Finish(std::move(choice));
}

// The best way that ranks before `better_than`; none is not an error if there is one already.
Task<Choice> SelectCore::Choose(std::shared_ptr<SelectCore> self, size_t better_than) {
  Choice choice;
  StatusOr<Hello> hello =
      co_await AskForHello(self->executor_, self->clock_, self->options_->tcp, self->address_);
  if (!hello.ok()) {
    choice.status = hello.status();
    co_return choice;
  }
  bool may_change = false;
  for (size_t rank = 0; rank < std::min(better_than, self->tcp_rank()); ++rank) {
    const bool offered = Offers(*hello, self->NameOf(rank));
    StatusOr<std::shared_ptr<Peer>> peer = co_await Try(self, rank, *hello);
    if (peer.ok()) {
      choice.way = Way{*std::move(peer), rank};
      co_return choice;
    }
    may_change = may_change || IsRetryable(peer.status());
    choice.hopeful = choice.hopeful || !offered || ToErrno(peer.status()) != ENOTSUP;
    choice.refused.push_back(absl::StrFormat("no %s: %s", self->NameOf(rank), peer.status().message()));
  }
  if (better_than <= self->tcp_rank()) co_return choice;
  co_return self->FallBack(std::move(choice), may_change);
}

Task<StatusOr<std::shared_ptr<Peer>>> SelectCore::Try(std::shared_ptr<SelectCore> self, size_t rank,
                                                      Hello hello) {
  const std::string name = self->NameOf(rank);
  auto offer = std::find_if(hello.offers.begin(), hello.offers.end(),
                            [&](const PathOffer& offer) { return offer.path == name; });
  if (offer == hello.offers.end() && self->offered_.contains(rank)) {
    co_return absl::UnavailableError("the server does not offer it any more");  // a device may come back
  }
  if (offer == hello.offers.end()) co_return ErrnoError(ENOTSUP, "the server does not offer it");
  self->offered_.insert(rank);
  std::string where = offer->where;
  const Duration timeout = self->options_->tcp.connect_timeout;
  co_return co_await self->options_->candidates[rank]->Connect(std::move(where), timeout, self->meters_);
}

Choice SelectCore::FallBack(Choice choice, bool may_change) const {
  if (options_->fall_back) {
    choice.way = Way{tcp_, tcp_rank()};
    return choice;
  }
  const std::string text =
      absl::StrFormat("%s cannot be used as configured: %s", address_, Reason(choice.refused));
  choice.status = may_change ? Status(absl::UnavailableError(text)) : ErrnoError(ENOTSUP, text);
  return choice;
}

std::string SelectCore::Reason(const std::vector<std::string>& refused) const {
  std::string text = absl::StrJoin(refused, "; ");
  if (options_->reason.empty()) return text;
  return text.empty() ? options_->reason : text + "; " + options_->reason;
}

void SelectCore::Finish(Choice choice) {
  std::vector<OneShot<Status>> waiters;
  Status status = choice.status;
  {
    std::lock_guard lock(mutex_);
    selecting_ = false;
    look_again_ = clock_.Coarse() + options_->retry_interval;
    waiters.swap(waiters_);
    if (closed_) {
      status = Closed();
    } else if (choice.way.peer != nullptr) {
      const bool changed = way_.peer == nullptr || way_.rank != choice.way.rank;
      way_ = choice.way;
      hopeful_ = choice.hopeful;
      refused_.clear();
      info_ = {way_.peer->path().path, Reason(choice.refused)};
      if (changed) {
        const LogLevel level = info_.reason.empty() ? LogLevel::kDebug : LogLevel::kInfo;
        Log(level, "data plane: %s is reached over %s%s%s", address_, info_.path,
            info_.reason.empty() ? "" : ": ", info_.reason);
      }
    } else if (way_.peer != nullptr) {
      if (status.ok()) hopeful_ = choice.hopeful;
      if (status.ok()) info_.reason = Reason(choice.refused);
    } else {
      if (status.ok())
        status = ErrnoError(ECONNRESET, absl::StrFormat("lost the connection to %s", address_));
      info_ = PathInfo{"none", std::string(status.message())};
    }
  }
  if (!status.ok() && choice.way.peer != nullptr && choice.way.peer != tcp_) choice.way.peer->Close();
  for (const OneShot<Status>& waiter : waiters) waiter.Set(status);
}

// The next call chooses anew. Other calls on the way may still end well.
void SelectCore::Lost(const Way& way, const Status& why) {
  std::lock_guard lock(mutex_);
  if (way_.peer != way.peer) return;
  way_ = Way{};
  info_ = PathInfo{"none", std::string(why.message())};
}

PathInfo SelectCore::path() const {
  std::vector<PathStats> stats = meters_->Read();
  std::lock_guard lock(mutex_);
  PathInfo info = {info_.path, info_.reason, std::move(stats)};
  for (const auto& [device, how] : refused_)
    absl::StrAppend(&info.reason, info.reason.empty() ? "" : "; ", how);
  return info;
}

std::string SelectCore::PathFor(const MemoryRegion& memory) const {
  Way way;
  {
    std::lock_guard lock(mutex_);
    way = way_;
  }
  if (way.peer == nullptr) return "none";
  auto* region = dynamic_cast<const SelectRegion*>(&memory);
  if (way.rank == tcp_rank() || region == nullptr || region->way_in() == WayIn::kTcp)
    return tcp_->PathFor(memory);
  if (region->way_in() == WayIn::kStaged) return absl::StrCat(NameOf(way.rank), "+staging");
  return region->part(way.rank) == nullptr ? tcp_->PathFor(memory)
                                           : way.peer->PathFor(*region->part(way.rank));
}

// Ends every wait for a choice, whether its call is given up or not: a call that is not is tried again.
void SelectCore::EndGivenUp() {
  Way way;
  std::vector<OneShot<Status>> waiters;
  {
    std::lock_guard lock(mutex_);
    way = way_;
    waiters.swap(waiters_);
  }
  if (way.peer != nullptr && way.peer != tcp_) way.peer->EndGivenUp();
  tcp_->EndGivenUp();
  for (const OneShot<Status>& waiter : waiters) waiter.Set(NotWaitedFor(address_));
}

void SelectCore::Close() {
  Way way;
  std::vector<OneShot<Status>> waiters;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    way = std::exchange(way_, Way{});
    waiters.swap(waiters_);
    info_ = PathInfo{"none", "closed"};
  }
  if (way.peer != nullptr) way.peer->Close();
  tcp_->Close();
  for (const OneShot<Status>& waiter : waiters) waiter.Set(Closed());
}

class SelectPeer : public Peer {
 public:
  explicit SelectPeer(std::shared_ptr<SelectCore> core) : core_(std::move(core)) {}
  ~SelectPeer() override { core_->Close(); }

  Task<StatusOr<std::string>> Call(CallRequest request, Duration timeout) override {
    return SelectCore::Call(core_, std::move(request), timeout);
  }
  void EndGivenUp() override { core_->EndGivenUp(); }
  PathInfo path() const override { return core_->path(); }
  std::string PathFor(const MemoryRegion& memory) const override { return core_->PathFor(memory); }
  std::string address() const override { return core_->address(); }
  void Close() override { core_->Close(); }

 private:
  const std::shared_ptr<SelectCore> core_;
};

}  // namespace

StatusOr<std::shared_ptr<Peer>> MakeSelectPeer(Executor executor, Clock& clock,
                                               std::shared_ptr<const SelectOptions> options,
                                               std::shared_ptr<StagingRegions> staging, std::string address) {
  TcpOptions tcp_options = options->tcp;
  if (!options->reason.empty()) tcp_options.path_reason = options->reason;
  auto meters = std::make_shared<PathMeters>();
  ASSIGN_OR_RETURN(std::shared_ptr<Peer> tcp,
                   MakeTcpPeer(executor, clock, std::move(tcp_options), std::move(address), meters));
  if (options->candidates.empty()) return tcp;  // nothing to choose
  auto core = std::make_shared<SelectCore>(std::move(executor), clock, std::move(options), std::move(staging),
                                           std::move(meters), std::move(tcp));
  return std::make_shared<SelectPeer>(std::move(core));
}

}  // namespace nacre
