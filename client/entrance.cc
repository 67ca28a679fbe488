#include "client/entrance.h"

#include <cerrno>

#include "common/cancellation.h"
#include "common/log.h"

namespace nacre::client {
namespace {

constexpr Duration kCoarse = 10ms;  // Clock::Coarse

Status Unmounted() { return ErrnoError(ESHUTDOWN, "the filesystem is unmounted"); }

}  // namespace

Entrance::Entrance(const Environment& environment, const Options& options,
                   const std::shared_ptr<Session>& session, std::function<void()> run_out)
    : environment_(environment), options_(options), session_(session), run_out_(std::move(run_out)) {}

Status Entrance::Check(const FileHandle& handle) const {
  if (handle.epoch == epoch_ && handle.epoch == session_->epoch()) return OkStatus();
  return ErrnoError(EIO,
                    absl::StrFormat("file %s was opened before the MDS evicted this client: open it again",
                                    handle.inode->fid.ToString()));
}

// Those under which what is in memory was learned: a session that has followed upon theirs has leases of its
// own. The epoch is looked at last, so that it is the one of this end, or of a later one.
bool Entrance::LeasesGood() const {
  if (options_.plant_no_expiry) return true;
  const Duration end = session_->leases_end();
  return environment_.clock.Coarse() + kCoarse < end && epoch_ == session_->epoch();
}

// Those of a session that has just ended wait for Core::StartAnew.
bool Entrance::MayEnter() const { return epoch_ == session_->epoch() && LeasesGood(); }

Gate::Pass Entrance::TryEnter() {
  Gate::Pass pass = gate_.TryEnter();
  if (pass && !MayEnter()) pass.Leave();
  return pass;
}

Task<Status> Entrance::Enter(Gate::Pass* pass) {
  const Duration begin = environment_.clock.Now();
  for (;;) {
    *pass = co_await gate_.EnterUnlessCancelled();
    if (!*pass) co_return GivenUp();
    OneShot<Unit> change;
    {
      std::lock_guard lock(mutex_);
      if (MayEnter()) co_return OkStatus();
      if (stopped_) co_return Unmounted();
      waiting_.push_back(change);
    }
    pass->Leave();
    CO_RETURN_IF_ERROR(co_await AwaitChange(change, begin));
  }
}

// Waits until the leases are confirmed or the session is another one. `change` was queued before Stop, which
// wakes it; who comes later is refused instead of queued, because nobody would wake him.
Task<Status> Entrance::AwaitChange(OneShot<Unit> change, Duration begin) {
  CO_RETURN_IF_ERROR(session_->refusal());
  std::unique_ptr<TimerHandle> timer;
  if (!options_.retry.hard) {
    const Duration left = options_.retry.soft_timeout - (environment_.clock.Now() - begin);
    if (left <= 0ns) {
      co_return ErrnoError(EIO, absl::StrFormat("the MDS did not answer for %d s (soft timeout), and what is "
                                                "cached may be out of date",
                                                options_.retry.soft_timeout / 1s));
    }
    timer = environment_.clock.After(environment_.executor, left, [change] { change.Set({}); });
  }
  CO_RETURN_IF_ERROR(co_await WaitUnlessCancelled(change));
  std::lock_guard lock(mutex_);
  if (stopped_) co_return Unmounted();
  co_return OkStatus();
}

Task<Status> Entrance::AwaitGoodLeases(HandlePtr handle) {
  const Duration begin = environment_.clock.Now();
  for (;;) {
    OneShot<Unit> change;
    {
      std::lock_guard lock(mutex_);
      CO_RETURN_IF_ERROR(Check(*handle));
      if (LeasesGood()) co_return OkStatus();
      if (stopped_) co_return Unmounted();
      waiting_.push_back(change);
    }
    CO_RETURN_IF_ERROR(co_await AwaitChange(change, begin));
  }
}

void Entrance::Wake() {
  std::vector<OneShot<Unit>> waiters;
  {
    std::lock_guard lock(mutex_);
    waiters.swap(waiting_);
  }
  for (OneShot<Unit>& waiter : waiters) waiter.Set({});
}

void Entrance::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
    run_out_timer_.reset();
  }
  Wake();
}

// The timer is for the kernel's pages: whoever comes looks at the clock. An answer that took longer than the
// leases are good confirms nothing.
void Entrance::OnLeasesConfirmed() {
  const Duration left = session_->leases_end() - environment_.clock.Now();
  if (left > 0ns) {
    std::lock_guard lock(mutex_);
    run_out_timer_.reset();
    if (!stopped_)
      run_out_timer_ = environment_.clock.After(environment_.executor, left, [this] { OnRunOut(); });
  }
  Wake();
}

void Entrance::OnRunOut() {
  if (LeasesGood() || session_->leases_end() == 0ns) return;
  {
    std::lock_guard lock(mutex_);
    if (stopped_) return;
  }
  LogWarning(
      "the MDS has not answered for as long as this client may rely on what it has cached: going on when it "
      "answers again");
  run_out_();
}

}  // namespace nacre::client
