#include "server/object/server_core.h"

#include <algorithm>

#include "common/lease_time.h"
#include "common/log.h"

namespace nacre::ost {
namespace {

constexpr Duration kGrantSilence = WithDrift(kGrantLease);
constexpr Duration kSessionSilence = std::chrono::hours(24);
constexpr size_t kManySessions = 65536;  // beyond, those are forgotten sooner that have been silent

}  // namespace

Target* ServerCore::Find(OstIndex index) {
  for (Target& target : targets) {
    if (target.store->superblock().index == index) return &target;
  }
  return nullptr;
}

void ServerCore::BeginStop() {
  std::vector<OneShot<Unit>> wake;
  {
    std::lock_guard lock(mutex_);
    stopping_.store(true);
    wake = std::move(pauses_);
    pauses_.clear();
  }
  for (const OneShot<Unit>& pause : wake) pause.Set({});
}

Task<void> ServerCore::Drained() {
  OneShot<Unit> done;
  {
    std::lock_guard lock(mutex_);
    if (running_ == 0) co_return;
    drained_.push_back(done);
  }
  co_await done.Wait();
}

Task<void> ServerCore::Pause(Duration duration) {
  OneShot<Unit> over;
  {
    std::lock_guard lock(mutex_);
    if (stopping()) co_return;
    std::erase_if(pauses_, [](const OneShot<Unit>& pause) { return pause.IsSet(); });
    pauses_.push_back(over);
  }
  auto timer = environment.clock.After(environment.executor, duration, [over] { over.Set({}); });
  co_await over.Wait();
}

ServerCore::Running::Running(std::shared_ptr<ServerCore> core) : core_(std::move(core)) {
  std::lock_guard lock(core_->mutex_);
  ++core_->running_;
}

ServerCore::Running::~Running() {
  std::vector<OneShot<Unit>> wake;
  {
    std::lock_guard lock(core_->mutex_);
    if (--core_->running_ == 0) wake = std::move(core_->drained_);
  }
  for (const OneShot<Unit>& done : wake) done.Set({});
}

// A store that does not know what its disk has cannot be served any more, and only a start finds out: the
// process begins anew, as soon as the next start is sure to look. `is_news`: it has just failed, so the log
// is told why that must wait.
Task<void> GiveUpStore(ServerCore& core, Target& target, bool is_news) {
  const Status why = target.store->flush_failure();
  if (why.ok() || core.begin_anew.IsSet()) co_return;
  const std::string what = absl::StrFormat("OST %d (%s): its disk has not flushed what it had taken",
                                           target.store->superblock().index, target.store->directory());
  const Status noted = co_await target.store->SuspectLoss();
  if (noted.ok()) {
    core.begin_anew.Set(
        {why.code(), absl::StrFormat("%s; a new start finds out what it has: %s", what, why.message())});
  } else if (is_news) {
    LogError("%s, and that cannot be noted, trying again: %s", what, std::string(noted.message()));
  }
}

Task<void> RunMaintenance(std::shared_ptr<ServerCore> core, size_t index) {
  ServerCore::Running running(core);
  Target& target = core->targets[index];
  bool failing = false;
  while (!core->stopping()) {
    co_await core->Pause(core->options.sync_interval);
    if (core->stopping()) break;
    target.sessions->DropSilentGrants(kGrantSilence);
    const bool many = target.sessions->size() > kManySessions;
    target.sessions->ForgetSilent(many ? kGrantSilence : kSessionSilence);
    Status status = co_await target.store->Maintain();
    if (core->stopping()) break;
    co_await GiveUpStore(*core, target, /*is_news=*/!failing);
    if (status.ok() == !failing) continue;
    failing = !status.ok();
    if (failing) {
      LogError("OST %d (%s): sync failed, trying again: %s", target.store->superblock().index,
               target.store->directory(), std::string(status.message()));
    } else {
      LogInfo("OST %d (%s): sync works again", target.store->superblock().index, target.store->directory());
    }
  }
}

}  // namespace nacre::ost
