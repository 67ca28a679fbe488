#include "server/cluster/chain_keeper.h"

#include <cerrno>

#include "common/log.h"

namespace nacre::cluster {
namespace {

constexpr int kEntryPatience = 12;  // heartbeats; OstChain gives up a member before

Status Ending() { return absl::UnavailableError("the metadata server is stopping"); }

// "uuid1 > uuid2, uuid3 joins": for the log.
std::string Text(const OstRecord& record) {
  std::string text;
  for (const OstMember& member : record.members) {
    if (member.in_sync()) absl::StrAppend(&text, text.empty() ? "" : " > ", member.uuid);
    if (member.state == OstMember::State::kJoining) absl::StrAppend(&text, ", ", member.uuid, " joins");
  }
  return text;
}

}  // namespace

// --- the OSTs ---

void ChainKeeper::Load(OstIndex index, OstRecord record) {
  const Duration now = clock_.Now();
  std::lock_guard lock(mutex_);
  groups_[index] = std::make_shared<Group>(index, OstChain(index, heartbeat_, now, std::move(record)));
}

ChainKeeper::GroupPtr ChainKeeper::Find(OstIndex index) const {
  std::lock_guard lock(mutex_);
  auto it = groups_.find(index);
  return it == groups_.end() || it->second->chain.record().members.empty() ? nullptr : it->second;
}

ChainKeeper::GroupPtr ChainKeeper::FindOrMake(OstIndex index) {
  const Duration now = clock_.Now();
  std::lock_guard lock(mutex_);
  GroupPtr& group = groups_[index];
  if (group == nullptr) group = std::make_shared<Group>(index, OstChain(index, heartbeat_, now));
  return group;
}

bool ChainKeeper::Has(OstIndex index) const { return Find(index) != nullptr; }

bool ChainKeeper::IsOver(const Group& group) const {
  std::lock_guard lock(mutex_);
  return closed_ || group.gone;
}

void ChainKeeper::Close() {
  std::map<std::string, std::shared_ptr<ObjectStub>> stubs;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    for (auto& [index, group] : groups_) {
      Wake(group.get());
      WakeWaiters(group.get());
    }
    stubs = stubs_;
  }
  for (auto& [address, stub] : stubs) stub->Close();
}

void ChainKeeper::Wake(Group* group) const { group->wake.Set({}); }

void ChainKeeper::WakeWaiters(Group* group) {
  for (OneShot<Unit>& waiter : group->waiters) waiter.Set({});
  group->waiters.clear();
}

Status ChainKeeper::Start(OstIndex index, const Executor& executor) {
  std::shared_ptr<void> hold = owner_.Hold();
  const GroupPtr group = Find(index);
  {
    std::lock_guard lock(mutex_);
    if (closed_ || hold == nullptr || group == nullptr) return Ending();
    Wake(group.get());
    if (std::exchange(group->running, true)) return OkStatus();
  }
  Spawn(executor, Keep(group, std::move(hold)));  // may begin at once
  return OkStatus();
}

// --- what members say ---

Status ChainKeeper::Check(const Arrival& arrival) const {
  std::lock_guard lock(mutex_);
  auto it = groups_.find(arrival.info.index());
  if (it != groups_.end()) return it->second->chain.WithMember(arrival).status();
  return OstChain(arrival.info.index(), heartbeat_, Duration{0}).WithMember(arrival).status();
}

Task<Status> ChainKeeper::Enter(Arrival arrival) {
  const GroupPtr group = FindOrMake(arrival.info.index());
  auto guard = co_await group->changing.Lock();
  OstRecord next;
  bool stored = false;
  {
    std::lock_guard lock(mutex_);
    CO_ASSIGN_OR_RETURN(next, group->chain.WithMember(arrival));
    stored = next == group->chain.record();
  }
  if (!stored) CO_RETURN_IF_ERROR(co_await Put(group, std::move(next)));
  {
    const Duration now = clock_.Now();
    std::lock_guard lock(mutex_);
    CO_RETURN_IF_ERROR(ended_.CheckRuns(arrival.instance));
    group->chain.Registered(arrival, now);
  }
  LogInfo("member %s of OST %d is %s at %s", arrival.info.uuid(), group->index,
          arrival.info.failing() ? "there, but failing," : "there", arrival.address);
  co_return co_await ChangeAll(group);
}

Task<Status> ChainKeeper::AwaitEntry(OstIndex index, std::string uuid) {
  const GroupPtr group = Find(index);
  const Executor executor = co_await CurrentExecutor();
  const Duration deadline = clock_.Now() + kEntryPatience * heartbeat_;
  while (group != nullptr) {
    OneShot<Unit> changed;
    const Duration now = clock_.Now();
    const Duration left = deadline - now;
    {
      std::lock_guard lock(mutex_);
      if (closed_ || group->gone) co_return Ending();
      const OstChain::Entry entry = group->chain.EntryOf(uuid);
      group->chain.Answered(uuid, now);
      if (entry == OstChain::Entry::kDone) co_return OkStatus();
      if (entry == OstChain::Entry::kFailed || left <= Duration{0}) break;
      group->waiters.push_back(changed);
    }
    auto timer = clock_.After(executor, left, [changed] { changed.Set({}); });
    co_await changed.Wait();
  }
  co_return ErrnoError(EAGAIN,
                       absl::StrFormat("member %s could not be told of the chain of OST %d", uuid, index));
}

bool ChainKeeper::Beat(const Arrival& arrival) {
  const GroupPtr group = Find(arrival.info.index());
  if (group == nullptr) return false;
  const Duration now = clock_.Now();
  bool known = false, changed = false;
  {
    std::lock_guard lock(mutex_);
    const bool was_up = group->chain.up();
    known = group->chain.Beat(arrival, now);
    changed = was_up != group->chain.up();
    if (group->chain.Due(now) || !group->chain.BehindToTell().empty() || group->chain.HeadToTell())
      Wake(group.get());
  }
  if (changed) owner_.Changed();
  return known;
}

void ChainKeeper::Ended(uint64_t instance) {
  const Duration now = clock_.Now();
  bool changed = false;
  {
    std::lock_guard lock(mutex_);
    for (auto& [index, group] : groups_) {
      if (!group->chain.Ended(instance, now)) continue;
      LogWarning("the process of a member of OST %d has ended", index);
      WakeWaiters(group.get());
      Wake(group.get());
      changed = true;
    }
  }
  if (changed) owner_.Changed();
}

Task<StatusOr<proto::Chain>> ChainKeeper::Report(proto::ReportChainRequest request) {
  const GroupPtr group = Find(request.ost());
  if (group == nullptr) {
    co_return ErrnoError(ENODEV, absl::StrFormat("OST %d has no chain: nobody with several copies has "
                                                 "registered as that",
                                                 request.ost()));
  }
  auto guard = co_await group->changing.Lock();
  std::optional<OstRecord> next;
  {
    std::lock_guard lock(mutex_);
    CO_ASSIGN_OR_RETURN(next, group->chain.Report(request));
  }
  if (next.has_value()) {
    if (!request.lost().empty()) {
      LogWarning("%s, the head of OST %d, has lost member %s: %s", request.reporter(), group->index,
                 request.lost(), request.why());
    }
    CO_RETURN_IF_ERROR(co_await Put(group, *std::move(next)));
    // It has to register again before it joins.
    std::lock_guard lock(mutex_);
    if (!request.lost().empty()) group->chain.Down(request.lost());
  }
  guard.Release();
  if (next.has_value()) owner_.Changed();
  // The head acts by the chain of the answer when it has that, so the members behind it hear of it before.
  // The background task may be busy admitting the head, which may wait for just these members.
  co_await TellBehind(group);
  std::lock_guard lock(mutex_);
  Wake(group.get());
  co_return group->chain.Describe();
}

Task<Status> ChainKeeper::SetUse(OstIndex index, OstUse use) {
  const GroupPtr group = Find(index);
  if (group == nullptr) co_return ErrnoError(ENODEV, absl::StrFormat("OST %d has no chain", index));
  auto guard = co_await group->changing.Lock();
  OstRecord next;
  {
    std::lock_guard lock(mutex_);
    next = group->chain.record();
  }
  next.use = use;
  CO_RETURN_IF_ERROR(co_await Put(group, std::move(next)));
  if (!IsGone(use)) co_return OkStatus();
  std::lock_guard lock(mutex_);
  group->gone = true;
  groups_.erase(index);
  Wake(group.get());
  WakeWaiters(group.get());
  co_return OkStatus();
}

// --- changes ---

Task<Status> ChainKeeper::Put(const GroupPtr& group, OstRecord record) {
  if (IsOver(*group)) co_return Ending();
  KvBatch batch;
  batch.UseReserve();  // without its OSTs a full cluster could not be emptied
  batch.Put(OstKey(group->index), EncodeOst(record));
  CO_RETURN_IF_ERROR(co_await store_.Commit(std::move(batch)));
  CO_RETURN_IF_ERROR(co_await store_.Sync());
  std::lock_guard lock(mutex_);
  if (record.epoch != group->chain.record().epoch)
    LogInfo("the chain of OST %d in epoch %d: %s", group->index, record.epoch, Text(record));
  group->chain.Adopt(std::move(record));
  WakeWaiters(group.get());
  co_return OkStatus();
}

Task<Status> ChainKeeper::ChangeAll(const GroupPtr& group) {
  bool changed = false;
  while (true) {
    const Duration now = clock_.Now();
    std::optional<OstRecord> next;
    {
      std::lock_guard lock(mutex_);
      if (closed_ || group->gone) co_return Ending();
      changed |= group->chain.CheckSilent(now);
      next = group->chain.Due(now);
      if (changed) WakeWaiters(group.get());
    }
    if (!next.has_value()) break;
    CO_RETURN_IF_ERROR(co_await Put(group, *std::move(next)));
    changed = true;
  }
  if (changed) owner_.Changed();
  co_return OkStatus();
}

Task<Status> ChainKeeper::MakeDueChanges(GroupPtr group) {
  auto guard = co_await group->changing.Lock();
  co_return co_await ChangeAll(group);
}

Task<void> ChainKeeper::Keep(GroupPtr group, std::shared_ptr<void> hold) {
  while (!IsOver(*group)) {
    OneShot<Unit> wake;
    {
      std::lock_guard lock(mutex_);
      group->wake = wake;
    }
    Status changed = co_await MakeDueChanges(group);
    if (IsOver(*group)) break;
    if (!changed.ok()) {
      LogError("the chain of OST %d cannot be changed: %s", group->index, std::string(changed.message()));
      co_await clock_.Sleep(heartbeat_);
      continue;
    }
    const bool behind = co_await TellBehind(group);
    bool head = false;
    if (behind && !IsOver(*group)) head = co_await TellHead(group);
    if (!IsOver(*group)) co_await Pause(group, wake, /*retry=*/!behind || !head);
  }
  hold.reset();
}

Task<void> ChainKeeper::Pause(GroupPtr group, OneShot<Unit> wake, bool retry) {
  const Executor executor = co_await CurrentExecutor();
  const Duration now = clock_.Now();
  std::optional<Duration> left;
  {
    std::lock_guard lock(mutex_);
    if (closed_ || group->gone) co_return;
    left = group->chain.NextLook(now);
  }
  if (retry) left = std::min(left.value_or(heartbeat_ / 4), heartbeat_ / 4);
  std::unique_ptr<TimerHandle> timer;
  if (left.has_value()) timer = clock_.After(executor, *left, [wake] { wake.Set({}); });
  co_await wake.Wait();
}

StatusOr<std::shared_ptr<ObjectStub>> ChainKeeper::StubTo(const std::string& address) {
  ASSIGN_OR_RETURN(std::shared_ptr<Peer> peer, owner_.Connect(address));
  std::lock_guard lock(mutex_);
  if (closed_) return Ending();
  std::shared_ptr<ObjectStub>& stub = stubs_[address];
  if (stub == nullptr) {
    RetryPolicy policy;
    policy.hard = false;
    policy.soft_timeout = policy.call_timeout = heartbeat_;
    stub = std::make_shared<ObjectStub>(std::move(peer), clock_, /*session=*/0, /*first_sequence=*/1, policy,
                                        epoch_);
  }
  return stub;
}

// --- what others see ---

bool ChainKeeper::IsUp(OstIndex index) const {
  const GroupPtr group = Find(index);
  std::lock_guard lock(mutex_);
  return group != nullptr && group->chain.up();
}

OstRecord ChainKeeper::Record(OstIndex index) const {
  const GroupPtr group = Find(index);
  std::lock_guard lock(mutex_);
  return group == nullptr ? OstRecord() : group->chain.record();
}

std::string ChainKeeper::HeadOf(OstIndex index) const {
  const OstRecord record = Record(index);
  return record.members.empty() ? "" : record.head().uuid;
}

uint64_t ChainKeeper::InstanceOf(OstIndex index) const {
  const GroupPtr group = Find(index);
  std::lock_guard lock(mutex_);
  return group == nullptr ? 0 : group->chain.instance();
}

proto::OstInfo ChainKeeper::Info(OstIndex index) const {
  const GroupPtr group = Find(index);
  std::lock_guard lock(mutex_);
  return group == nullptr ? proto::OstInfo() : group->chain.Info();
}

void ChainKeeper::NoteSpace(OstIndex index, uint64_t instance, const proto::StatfsOstReply& space) {
  const GroupPtr group = Find(index);
  std::lock_guard lock(mutex_);
  if (group != nullptr) group->chain.NoteSpace(instance, space);
}

void ChainKeeper::Fill(OstIndex index, proto::OstState* state) const {
  const GroupPtr group = Find(index);
  const Duration now = clock_.Now();
  std::lock_guard lock(mutex_);
  if (group != nullptr) group->chain.Fill(now, state);
}

Duration ChainKeeper::ServesUntil(OstIndex index) const {
  const GroupPtr group = Find(index);
  std::lock_guard lock(mutex_);
  return group == nullptr ? Duration{0} : group->chain.ServesUntil();
}

void ChainKeeper::MarkHeadDown(OstIndex index, const std::string& uuid, std::string_view why) {
  const GroupPtr group = Find(index);
  if (group == nullptr) return;
  {
    std::lock_guard lock(mutex_);
    if (!group->chain.serving() || group->chain.record().head().uuid != uuid) return;
    group->chain.Down(uuid);
    Wake(group.get());
    LogWarning("%s, the head of OST %d, is taken out of service: %s", uuid, index, why);
  }
  owner_.Changed();
}

}  // namespace nacre::cluster
