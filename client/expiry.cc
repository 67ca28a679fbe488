// Leases run out by the clock (docs/architecture.md, Leases).
//
// A client may rely on what it holds until Session::leases_end, by its own steady clock: the MDS gives it to
// nobody else before. A client that is cut off notices by that alone. From then on nothing is answered from
// caches and nothing is acknowledged that is held back: operations wait at the gate (hard), or fail after the
// soft time-out, and the kernel is made to forget the pages it has; attributes and names it was never allowed
// to keep for longer (MakeKnown). When the MDS answers again, with the same session, everything goes on; when
// the session is gone, StartAnew follows, and those operations go on in the next one that do not need a
// handle of the old.
#include <cerrno>

#include "client/core.h"
#include "common/cancellation.h"
#include "common/log.h"

namespace nacre::client {
namespace {

constexpr Duration kCoarse = 10ms;  // Clock::Coarse

Status Unmounted() { return ErrnoError(ESHUTDOWN, "the filesystem is unmounted"); }

}  // namespace

// Those under which what is in memory here was learned: a session that has followed upon theirs has leases of
// its own. The epoch is looked at last, so that it is the one of this end, or of a later one.
bool Core::LeasesGood() const {
  if (options_.plant_no_expiry) return true;
  const Duration end = session_->leases_end();
  return environment_.clock.Coarse() + kCoarse < end && epoch_ == session_->epoch();
}

// Those of a session that has just ended wait for StartAnew.
bool Core::MayEnter() const { return epoch_ == session_->epoch() && LeasesGood(); }

Gate::Pass Core::TryEnter() {
  Gate::Pass pass = gate_.TryEnter();
  if (pass && !MayEnter()) pass.Leave();
  return pass;
}

Task<Status> Core::Enter(Gate::Pass* pass) {
  const Duration begin = environment_.clock.Now();
  for (;;) {
    *pass = co_await gate_.EnterUnlessCancelled();
    if (!*pass) co_return GivenUp();
    OneShot<Unit> change;
    {
      std::lock_guard lock(mutex_);
      if (MayEnter()) co_return OkStatus();
      if (stopping_) co_return Unmounted();
      entering_.push_back(change);
    }
    pass->Leave();
    CO_RETURN_IF_ERROR(co_await AwaitChange(change, begin));
  }
}

// Waits until the leases are confirmed or the session is another one. `change` was queued before Unmount,
// which wakes it; who comes later is refused instead of queued, because nobody would wake him. ESHUTDOWN;
// EINTR if nobody waits any more; EPROTO if the MDS does not let this client in; or EIO as the retry policy
// says.
Task<Status> Core::AwaitChange(OneShot<Unit> change, Duration begin) {
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
  if (stopping_) co_return Unmounted();
  co_return OkStatus();
}

// For those outside the gate, and for those inside who have waited. EIO: the handle has gone with its
// session.
Task<Status> Core::AwaitStillGood(HandlePtr handle) {
  const Duration begin = environment_.clock.Now();
  for (;;) {
    OneShot<Unit> change;
    {
      std::lock_guard lock(mutex_);
      CO_RETURN_IF_ERROR(CheckHandle(*handle));
      if (LeasesGood()) co_return OkStatus();
      if (stopping_) co_return Unmounted();
      entering_.push_back(change);
    }
    CO_RETURN_IF_ERROR(co_await AwaitChange(change, begin));
  }
}

void Core::WakeEntering() {
  std::vector<OneShot<Unit>> waiters;
  {
    std::lock_guard lock(mutex_);
    waiters.swap(entering_);
  }
  for (OneShot<Unit>& waiter : waiters) waiter.Set({});
}

// The timer is for the kernel's pages: whoever comes looks at the clock. An answer that took longer than the
// leases are good confirms nothing.
void Core::OnLeasesConfirmed() {
  const Duration left = session_->leases_end() - environment_.clock.Now();
  if (left > 0ns) {
    std::lock_guard lock(mutex_);
    run_out_timer_.reset();
    if (!stopping_)
      run_out_timer_ = environment_.clock.After(environment_.executor, left, [this] { OnRunOut(); });
  }
  WakeEntering();
}

// Each file by itself, and around the pages that are being read: those stay locked until the MDS answers
// again, and the kernel forgets them only then.
void Core::OnRunOut() {
  if (LeasesGood() || session_->leases_end() == 0ns) return;
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return;
  }
  LogWarning(
      "the MDS has not answered for as long as this client may rely on what it has cached: going on when it "
      "answers again");
  for (const Fid& fid : WithPages()) ForgetAroundLocked(fid);
}

}  // namespace nacre::client
