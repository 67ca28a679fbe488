#include "server/replication/in_sync.h"

#include <absl/strings/str_format.h>

#include "common/log.h"

namespace nacre::replication {
namespace {

constexpr Duration kAskJudgeAgain = 100ms;  // before the coordinator is asked again

}  // namespace

InSync::InSync(const MemberOptions& options, Clock& clock, Judge& judge, Judge::Known known)
    : self_(options.name),
      plant_unagreed_(options.plant_unagreed),
      plant_unfenced_(options.plant_unfenced),
      clock_(clock),
      judge_(judge),
      epoch_(known.record.epoch),
      filesystem_(known.record.filesystem),
      known_(std::move(known)) {}

bool InSync::Contains(const std::string& name) const {
  std::lock_guard lock(mutex_);
  return members_.contains(name);
}

std::vector<std::string> InSync::names() const {
  std::lock_guard lock(mutex_);
  return {members_.begin(), members_.end()};
}

void InSync::Count(const std::string& name) {
  std::lock_guard lock(mutex_);
  members_.insert(name);
  adding_.insert(name);
}

Task<void> InSync::Add(std::string name) {
  AsyncMutex::Guard guard = co_await record_.Lock();
  while (!ended() && !known_.record.in_sync.contains(name)) {
    MdtRecord to = known_.record;
    to.in_sync.insert(name);
    StatusOr<Judge::Known> now = co_await judge_.Change(known_, to);
    if (now.ok()) {
      Adopt(*now, to);
      if (now->record == to) LogInfo("the MDS %s is in sync", name);
    } else {
      LogWarning("cannot take the MDS %s into the set: %s", name, now.status().message());
      co_await clock_.Sleep(kAskJudgeAgain);
    }
  }
  std::lock_guard lock(mutex_);
  adding_.erase(name);
}

Task<void> InSync::TryRemove(std::string name, std::string why) {
  AsyncMutex::Guard guard = co_await record_.Lock();
  if (ended() || !Contains(name)) co_return;
  if (plant_unagreed_) {
    std::lock_guard lock(mutex_);
    members_.erase(name);
    co_return;
  }
  MdtRecord to = known_.record;
  to.in_sync.erase(name);
  StatusOr<Judge::Known> now = co_await judge_.Change(known_, to);
  if (now.ok()) {
    Adopt(*now, to);
    if (now->record == to) LogWarning("the MDS %s is no longer in sync: %s", name, why);
  } else {
    unsettled_ = true;
    LogWarning("the MDS %s (%s) cannot be taken out of the set: %s", name, why, now.status().message());
    co_await clock_.Sleep(kAskJudgeAgain);
  }
}

// The member that was to be taken out may answer again, and then nobody would ask for it any more; but the
// coordinator may have taken it out. The record as it is known here, written again, shows what it is.
Task<void> InSync::Settle() {
  if (!unsettled_) co_return;
  AsyncMutex::Guard guard = co_await record_.Lock();
  if (ended() || !unsettled_) co_return;
  const MdtRecord same = known_.record;
  StatusOr<Judge::Known> now = co_await judge_.Change(known_, same);
  if (now.ok()) Adopt(*now, same);
}

// The record is this now. If it is not what was wanted, an earlier change of ours was carried out late, or
// somebody else is primary.
void InSync::Adopt(const Judge::Known& known, const MdtRecord& wanted) {
  if (known.record != wanted && (known.record.primary != self_ || known.record.epoch != epoch_)) {
    return End(absl::FailedPreconditionError(
        absl::StrFormat("%s is the primary now, in epoch %d", known.record.primary, known.record.epoch)));
  }
  known_ = known;
  unsettled_ = false;
  std::lock_guard lock(mutex_);
  members_ = known.record.in_sync;
  members_.insert(adding_.begin(), adding_.end());
  members_.erase(self_);
  WakeLocked();
}

// --- authority ---

void InSync::Promised(const std::string& name, Duration until) {
  std::lock_guard lock(mutex_);
  promises_[name] = std::max(promises_[name], until);
  WakeLocked();
}

bool InSync::HasPromise(const std::string& name) const {
  std::lock_guard lock(mutex_);
  auto it = promises_.find(name);
  return it != promises_.end() && clock_.Now() < it->second;
}

bool InSync::MayServeLocked() const {
  if (ended_) return false;
  if (plant_unfenced_ || members_.empty()) return true;
  const Duration now = clock_.Now();
  for (const std::string& name : members_) {
    auto it = promises_.find(name);
    if (it == promises_.end() || now >= it->second) return false;
  }
  return true;
}

bool InSync::MayServe() const {
  std::lock_guard lock(mutex_);
  return MayServeLocked();
}

Task<Status> InSync::AwaitAuthority() {
  while (true) {
    OneShot<Unit> changed;
    {
      std::lock_guard lock(mutex_);
      if (ended_) co_return absl::UnavailableError("this MDS is not the primary any more");
      if (MayServeLocked()) co_return OkStatus();
      waiters_.push_back(changed);
    }
    co_await changed.Wait();
  }
}

void InSync::WakeLocked() {
  if (!ended_ && !MayServeLocked()) return;
  for (const OneShot<Unit>& waiter : waiters_) waiter.Set({});
  waiters_.clear();
}

void InSync::End(Status why) {
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(ended_, true)) return;
    WakeLocked();
  }
  end_.Set(std::move(why));
}

bool InSync::ended() const {
  std::lock_guard lock(mutex_);
  return ended_;
}

Task<Status> InSync::AwaitEnd() {
  Status why = co_await end_.Wait();
  co_return why;
}

}  // namespace nacre::replication
