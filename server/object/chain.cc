#include "server/object/chain.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/log.h"
#include "rpc/convert.h"
#include "server/object/change_proto.h"
#include "server/object/filling.h"
#include "server/object/server_core.h"

namespace nacre::ost {
namespace {

constexpr Duration kReportPause = std::chrono::milliseconds(200);

// Cuts the edits off at this block.
std::vector<ExtentEdit> Before(const std::vector<ExtentEdit>& edits, uint64_t block) {
  std::vector<ExtentEdit> out;
  for (ExtentEdit edit : edits) {
    if (edit.first >= block) break;
    edit.count = std::min(edit.count, block - edit.first);
    out.push_back(edit);
  }
  return out;
}

}  // namespace

Chain::Chain(ServerCore* core, ObjectStore* store, Sessions* sessions, Report report)
    : core_(core),
      store_(store),
      sessions_(sessions),
      uuid_(store->superblock().uuid),
      report_(std::move(report)) {}

Chain::~Chain() = default;

Status Chain::CheckHead() const {
  std::lock_guard lock(mutex_);
  if (role_ == Role::kHead && !settling_) return OkStatus();
  if (role_ == Role::kHead)
    return ErrnoError(ECONNRESET, "this server compares itself with the member behind it before it serves");
  return ErrnoError(ECONNRESET, "this server is not the head of the OST's chain (any more, or yet)");
}

// It may have been taken out of the chain and not heard of it yet: what it answers then is of another version
// than the head's, if that has changed since.
Status Chain::CheckInSync() const {
  if (IsInSync()) return OkStatus();
  return ErrnoError(ECONNRESET, "this server has not everything that the OST's chain has");
}

// Those of the member before this one; in an epoch they all come from one process.
Status Chain::Hear(const proto::ObjectRequest& request) {
  const HandedOn by{request.chain_epoch(), request.chain_turn()};
  std::lock_guard lock(mutex_);
  RETURN_IF_ERROR(CheckFromLocked(by));
  if (by.epoch != epoch_) return OkStatus();
  RETURN_IF_ERROR(heard_.Hear(request));
  if (request.apply().has_object())
    in_doubt_.Note(by.turn, heard_.low_water(), FromProto(request.apply().object()));
  return OkStatus();
}

Status Chain::CheckFrom(HandedOn by) const {
  std::lock_guard lock(mutex_);
  return CheckFromLocked(by);
}

// mutex_ held.
Status Chain::CheckFromLocked(HandedOn by) const {
  if (core_->options.plant_unfenced && by.epoch <= epoch_) return OkStatus();
  if (by.epoch < epoch_)
    return ErrnoError(ESTALE, absl::StrFormat("the chain of epoch %d is over: it is %d", by.epoch, epoch_));
  if (by.epoch > epoch_ || (role_ != Role::kMember && role_ != Role::kJoining)) {
    return ErrnoError(ECONNRESET,
                      absl::StrFormat("this member does not know the chain of epoch %d yet", by.epoch));
  }
  if (!heard_.IsOver(by.turn)) return OkStatus();
  return ErrnoError(ESTALE, absl::StrFormat("request %d of the chain of epoch %d was answered long ago; "
                                            "this is a late copy",
                                            by.turn, by.epoch));
}

bool Chain::joining() const {
  std::lock_guard lock(mutex_);
  return role_ == Role::kJoining;
}

uint32_t Chain::epoch() const {
  std::lock_guard lock(mutex_);
  return epoch_;
}

Chain::View Chain::Look() const {
  std::lock_guard lock(mutex_);
  View view{role_, epoch_, next_, {}};
  for (const FillingPtr& filling : fillings_)
    if (filling->takes_changes()) view.fillings.push_back(filling);
  return view;
}

bool Chain::Current(uint32_t epoch) const {
  std::lock_guard lock(mutex_);
  return epoch_ == epoch && role_ != Role::kWaiting && !core_->stopping();
}

// --- being told ---

// A process that has been started since may have lost what the one before it had: it is in no chain until it
// has registered, and the MGS has decided by what it says of itself.
Status Chain::CheckMeant(const proto::Chain& chain) const {
  for (const auto* named : {&chain.members(), &chain.joining()}) {
    for (const proto::ChainMember& member : *named) {
      if (member.uuid() != uuid_ || member.instance() == core_->instance) continue;
      return ErrnoError(
          ESTALE, absl::StrFormat("epoch %d of the chain names process %d of this server, and this is %d",
                                  chain.epoch(), member.instance(), core_->instance));
    }
  }
  return OkStatus();
}

Status Chain::Set(const proto::SetChain& told) {
  if (told.member() != uuid_) {
    return ErrnoError(ENODEV, absl::StrFormat("the store here is %s, not %s", uuid_, told.member()));
  }
  const proto::Chain& chain = told.chain();
  RETURN_IF_ERROR(CheckMeant(chain));
  std::vector<LinkPtr> gone;  // ended outside of the mutex
  std::vector<FillingPtr> begun;
  bool settle = false;
  {
    std::lock_guard lock(mutex_);
    if (chain.epoch() < epoch_) {
      return ErrnoError(
          ESTALE, absl::StrFormat("epoch %d is over: this member was told of %d", chain.epoch(), epoch_));
    }
    if (chain.epoch() == epoch_) return OkStatus();  // also if it has given up its place in it
    std::vector<LinkPtr> known;
    if (next_ != nullptr) known.push_back(next_);
    for (const FillingPtr& filling : fillings_) known.push_back(filling->link());
    const std::vector<FillingPtr> before = fillings_;
    const bool settled = role_ == Role::kHead && !settling_;
    epoch_ = chain.epoch();
    heard_ = {};
    role_ = Role::kWaiting;
    next_.reset();
    place_ = chain.members_size();
    head_ = chain.members_size() > 0 ? chain.members(0) : proto::ChainMember();
    for (int i = 0; i < chain.members_size(); ++i) {
      if (chain.members(i).uuid() != uuid_) continue;
      place_ = i;
      role_ = i == 0 ? Role::kHead : Role::kMember;
      if (i + 1 < chain.members_size()) next_ = LinkTo(chain.members(i + 1), known);
    }
    for (const proto::ChainMember& member : chain.joining()) {
      if (member.uuid() == uuid_) role_ = Role::kJoining;
    }
    fillings_.clear();
    if (role_ == Role::kHead) begun = SetFillings(chain, before, known);
    const bool alone = role_ == Role::kHead && next_ == nullptr && fillings_.empty();
    if (!alone) alone_since_.reset();
    if (alone && !known.empty()) alone_since_ = core_->environment.clock.Now();
    in_doubt_.BeginEpoch();
    if (role_ == Role::kHead || role_ == Role::kJoining) in_doubt_.Clear();
    if (role_ != Role::kHead) distrusted_.clear();
    settle = settling_ = role_ == Role::kHead && next_ != nullptr && !settled;
    gone = std::move(known);
  }
  LogInfo("OST %d (%s): epoch %d of its chain: %s", store_->superblock().index, store_->directory(),
          chain.epoch(), RoleName());
  if (settle) Spawn(core_->environment.executor, Settle(core_->shared_from_this(), this, chain.epoch()));
  for (const FillingPtr& filling : begun) {
    Spawn(core_->environment.executor, Filling::Run(core_->shared_from_this(), filling));
  }
  return OkStatus();
}

std::string_view Chain::RoleName() const {
  std::lock_guard lock(mutex_);
  switch (role_) {
    case Role::kHead:
      return "this is the head";
    case Role::kMember:
      return "this is a member in sync";
    case Role::kJoining:
      return "this one is being filled";
    case Role::kWaiting:
      break;
  }
  return "this one is not in it";
}

Chain::LinkPtr Chain::LinkTo(const proto::ChainMember& member, const std::vector<LinkPtr>& known) const {
  for (const LinkPtr& link : known) {
    if (link->Leads(member)) return link;
  }
  auto peer = core_->environment.transport.Connect(member.address());
  if (!peer.ok()) {  // the MGS has checked the address
    LogError("the address %s of a member is of no use: %s", member.address(),
             std::string(peer.status().message()));
    return nullptr;
  }
  return std::make_shared<ChainLink>(*std::move(peer), core_->environment.clock, store_->superblock().index,
                                     member);
}

// Those that go on, and new ones, which are returned.
std::vector<Chain::FillingPtr> Chain::SetFillings(const proto::Chain& chain,
                                                  const std::vector<FillingPtr>& before,
                                                  const std::vector<LinkPtr>& known) {
  std::vector<FillingPtr> begun;
  for (const proto::ChainMember& member : chain.joining()) {
    auto same = std::ranges::find_if(
        before, [&](const FillingPtr& filling) { return filling->link()->Leads(member); });
    if (same != before.end()) {
      fillings_.push_back(*same);
      continue;
    }
    LinkPtr link = LinkTo(member, known);
    if (link == nullptr) continue;
    begun.push_back(std::make_shared<Filling>(core_, store_, sessions_, this, std::move(link), member));
    fillings_.push_back(begun.back());
  }
  return begun;
}

// --- handing on ---

Task<Status> Chain::HandOn(const OutgoingChange& change) {
  const uint32_t from = change.by == nullptr ? 0 : change.by->handed_on().epoch;
  if (from == 0) co_return co_await HandOnAsHead(change);
  co_return co_await HandOnAsMember(change);
}

Task<Status> Chain::HandOnAsMember(const OutgoingChange& change) {
  const HandedOn by = change.by->handed_on();
  CO_RETURN_IF_ERROR(CheckFrom(by));
  View view = Look();
  if (view.next == nullptr) co_return OkStatus();
  std::optional<Outgoing> outgoing = MessageFor(change, nullptr);
  Status status = co_await Send(view.next, by.epoch, *std::move(outgoing));
  if (status.ok() || ToErrno(status) == ESTALE) co_return status;
  co_return ErrnoError(EHOSTUNREACH, absl::StrCat(view.next->uuid(), " ", status.message()));
}

Task<Status> Chain::HandOnAsHead(const OutgoingChange& change) {
  std::vector<LinkPtr> done;
  for (;;) {
    CO_RETURN_IF_ERROR(CheckHead());
    View view = Look();
    std::vector<std::pair<LinkPtr, Filling*>> to;
    if (view.next != nullptr) to.emplace_back(view.next, nullptr);
    for (const FillingPtr& filling : view.fillings) to.emplace_back(filling->link(), filling.get());
    bool complete = true;
    for (const auto& [link, filling] : to) {
      if (std::ranges::find(done, link) != done.end()) continue;
      std::optional<Outgoing> outgoing = MessageFor(change, filling);
      Status status = OkStatus();
      if (outgoing) status = co_await Send(link, view.epoch, *std::move(outgoing));
      if (status.ok()) {
        done.push_back(link);
        continue;
      }
      if (core_->options.plant_unagreed) continue;
      co_await GiveUp(link->uuid(), view.epoch, status);
      complete = false;
      break;
    }
    // The chain may have got a member meanwhile that has not had this change; all that was in it has.
    if (complete && Current(view.epoch)) co_return OkStatus();
    if (core_->stopping()) co_return ErrnoError(ESHUTDOWN, "the server is stopping");
  }
}

// None: the member is told of nothing.
std::optional<Chain::Outgoing> Chain::MessageFor(const OutgoingChange& change, Filling* filling) const {
  Outgoing out;
  proto::ApplyChange* apply = out.request.mutable_apply();
  if (change.by != nullptr) out.request.set_session(change.by->session());
  if (change.answer) {
    out.request.set_sequence(change.answer->sequence);
    out.request.set_low_water(change.answer->low_water);
    apply->set_ends_request(true);
    apply->set_delta(change.answer->delta);
  }
  if (change.object == nullptr) return out;
  Filling::Covered covered{.all = true};
  if (filling != nullptr) covered = filling->CoverageOf(*change.object, change.before == ObjectVersion{});
  if (!covered.all && !covered.partly) {
    if (!change.answer) return std::nullopt;
    return out;
  }
  *apply->mutable_object() = ToProto(*change.object);
  apply->set_destroy(!change.after);
  if (change.after) *apply->mutable_parent() = ToProto(change.after->parent);
  if (change.after) apply->set_size(change.after->size);
  out.edits = covered.all ? change.change->edits : Before(change.change->edits, covered.blocks);
  AddEdits(out.edits, apply);
  if (!covered.all) return out;
  *apply->mutable_before() = ToProto(change.before);
  *apply->mutable_after() = ToProto(VersionOf(change.after));
  return out;
}

Task<Status> Chain::Send(const LinkPtr& link, uint32_t epoch, Outgoing outgoing) {
  const ChainStep step = place() == 0 ? ChainStep::kOutOfHead : ChainStep::kOutOfSecond;
  CO_ASSIGN_OR_RETURN(std::shared_ptr<BufferPool> buffers,
                      core_->chain_buffers.At(step, &core_->environment.transport));
  auto gathered = co_await store_->Gather(outgoing.edits, buffers);
  if (!gathered.ok()) {
    NoteFailure(gathered.status());
    co_return gathered.status();
  }
  if (core_->options.plant_early_ack) {
    Spawn(core_->environment.executor, SendUnawaited(core_->shared_from_this(), this, link, epoch,
                                                     std::move(outgoing), *std::move(gathered)));
    co_return OkStatus();
  }
  auto reply =
      co_await Call(link, epoch, std::move(outgoing.request), gathered->memory, ChainLink::kChangeTimeout);
  co_return reply.status();
}

// The planted bug.
Task<void> Chain::SendUnawaited(std::shared_ptr<ServerCore> core, Chain* chain, LinkPtr link, uint32_t epoch,
                                Outgoing outgoing, ObjectStore::Gathered gathered) {
  ServerCore::Running running(core);
  auto reply = co_await chain->Call(link, epoch, std::move(outgoing.request), gathered.memory,
                                    ChainLink::kChangeTimeout);
  (void)reply;
}

Task<StatusOr<proto::ObjectReply>> Chain::Call(LinkPtr link, uint32_t epoch, proto::ObjectRequest request,
                                               std::vector<MemorySpan> memory, Duration timeout) {
  request.set_chain_epoch(epoch);
  std::function<bool()> goes_on = [this, epoch] { return Current(epoch); };
  co_return co_await link->Call(std::move(request), std::move(memory), timeout, std::move(goes_on));
}

Task<Status> Chain::HandOnRequest(proto::ObjectRequest request) {
  const HandedOn by{request.chain_epoch(), request.chain_turn()};
  const uint32_t from = by.epoch;
  request.set_sequence(0);  // it may be carried out again
  request.set_low_water(0);
  for (;;) {
    Status may = from == 0 ? CheckHead() : CheckFrom(by);
    CO_RETURN_IF_ERROR(may);
    View view = Look();
    std::vector<LinkPtr> to;
    if (view.next != nullptr) to.push_back(view.next);
    for (const FillingPtr& filling : view.fillings) to.push_back(filling->link());
    Status status = OkStatus();
    for (size_t i = 0; i < to.size() && status.ok(); ++i) {
      std::vector<MemorySpan> none;
      auto reply = co_await Call(to[i], view.epoch, request, std::move(none), ChainLink::kSyncTimeout);
      status = reply.status();
      if (status.ok()) continue;
      if (from != 0) co_return ErrnoError(EHOSTUNREACH, absl::StrCat(to[i]->uuid(), " ", status.message()));
      co_await GiveUp(to[i]->uuid(), view.epoch, status);
    }
    if (status.ok() && Current(view.epoch)) co_return OkStatus();
    if (core_->stopping()) co_return ErrnoError(ESHUTDOWN, "the server is stopping");
  }
}

// --- asking the MGS ---

// The chain of the answer, which counts from here on. ESTALE: this is not the head.
Task<StatusOr<proto::Chain>> Chain::Ask(proto::ReportChainRequest request) {
  request.set_ost(store_->superblock().index);
  request.set_reporter(uuid_);
  auto reply = co_await report_(std::move(request));
  CO_RETURN_IF_ERROR(reply.status());
  CO_RETURN_IF_ERROR(FromProto(reply->status()));
  proto::SetChain told;
  *told.mutable_chain() = reply->chain();
  told.set_member(uuid_);
  CO_RETURN_IF_ERROR(Set(told));
  co_return std::move(*told.mutable_chain());
}

Task<void> Chain::GiveUp(std::string member, uint32_t epoch, Status why) {
  std::string lost = std::move(member);
  // One further on has not answered.
  if (ToErrno(why) == EHOSTUNREACH) lost = std::string(why.message()).substr(0, why.message().find(' '));
  // It may know of a later epoch, which the MGS tells before anything else.
  bool may_be_ahead = ToErrno(why) == ESTALE, said = false;
  while (Current(epoch)) {
    proto::ReportChainRequest request;
    request.set_epoch(epoch);
    if (!may_be_ahead) {
      request.set_lost(lost);
      request.set_why(std::string(why.message()));
      if (!std::exchange(said, true))
        LogWarning("OST %d (%s): member %s of its chain is given up: %s", store_->superblock().index,
                   store_->directory(), lost, request.why());
    }
    auto asked = co_await Ask(std::move(request));
    if (ToErrno(asked.status()) == ESTALE) BecomeWaiting(epoch);
    if (!Current(epoch)) break;
    if (asked.ok()) may_be_ahead = false;  // there is no later one: it does not take what it is given
    co_await core_->Pause(kReportPause);
  }
}

void Chain::BecomeWaiting(uint32_t epoch) {
  std::lock_guard lock(mutex_);
  if (epoch_ != epoch || role_ == Role::kWaiting) return;
  role_ = Role::kWaiting;
  next_.reset();
  fillings_.clear();
}

bool Chain::Joins(const Filling& filling) const {
  std::lock_guard lock(mutex_);
  return !core_->stopping() && role_ == Role::kHead &&
         std::ranges::any_of(fillings_, [&](const FillingPtr& one) { return one.get() == &filling; });
}

Task<Status> Chain::Joined(const Filling& filling) {
  while (Joins(filling)) {
    proto::ReportChainRequest request;
    request.set_epoch(epoch());
    request.set_joined(filling.link()->uuid());
    auto chain = co_await Ask(std::move(request));
    const bool in_sync = chain.ok() && std::ranges::any_of(chain->members(), [&](const auto& member) {
                           return filling.link()->Leads(member);
                         });
    if (in_sync) co_return OkStatus();
    if (Joins(filling)) co_await core_->Pause(kReportPause);
  }
  co_return ErrnoError(ECANCELED, "the member does not join any more");
}

// The others have what this store does not have, so it must not go on; unless it is alone.
void Chain::NoteFailure(const Status& why) {
  uint32_t epoch = 0;
  {
    std::lock_guard lock(mutex_);
    if (next_ == nullptr && role_ == Role::kHead) return;
    if (role_ == Role::kWaiting) return;
    epoch = epoch_;
  }
  LogError("OST %d (%s): a change that other members have cannot be made here: %s",
           store_->superblock().index, store_->directory(), std::string(why.message()));
  BecomeWaiting(epoch);
  Spawn(core_->environment.executor, StepDown(core_->shared_from_this(), this, epoch, why));
}

Task<void> Chain::StepDown(std::shared_ptr<ServerCore> core, Chain* chain, uint32_t epoch, Status why) {
  ServerCore::Running running(core);
  while (!core->stopping() && chain->epoch() == epoch) {
    proto::ReportChainRequest request;
    request.set_epoch(epoch);
    request.set_lost(chain->uuid_);
    request.set_why(std::string(why.message()));
    auto asked = co_await chain->Ask(std::move(request));
    if (asked.ok() || ToErrno(asked.status()) == ESTALE) co_return;
    co_await core->Pause(kReportPause);
  }
}

int Chain::place() const {
  std::lock_guard lock(mutex_);
  return place_;
}

}  // namespace nacre::ost
