#include "client/gate.h"

#include <algorithm>

#include "client/within.h"
#include "common/cancellation.h"

namespace nacre::client {
namespace {

// How long it stays closed with somebody inside: doubles, so that slow operations come to their end.
constexpr Duration kFirstClosedFor = 250ms;
constexpr Duration kMostClosedFor = 4s;
constexpr Duration kOpenFor = 1s;  // before the next try

Task<void> Until(OneShot<Unit> event) { co_await event.Wait(); }

}  // namespace

Gate::Pass Gate::TryEnter() {
  std::lock_guard lock(mutex_);
  if (closed_) return {};
  ++inside_;
  return Pass(this);
}

// Inside, or set when it is worth another try.
Gate::Pass Gate::EnterOrQueue(const OneShot<Unit>& opened) {
  std::lock_guard lock(mutex_);
  if (closed_) {
    outside_.push_back(opened);
    return {};
  }
  ++inside_;
  return Pass(this);
}

Task<Gate::Pass> Gate::Enter() {
  for (;;) {
    OneShot<Unit> opened;
    Pass pass = EnterOrQueue(opened);
    if (pass) co_return pass;
    co_await opened.Wait();
  }
}

Task<Gate::Pass> Gate::EnterUnlessCancelled() {
  for (;;) {
    OneShot<Unit> opened;
    Pass pass = EnterOrQueue(opened);
    if (pass) co_return pass;
    Status waited = co_await WaitUnlessCancelled(opened);
    if (!waited.ok()) co_return Pass();
  }
}

Task<bool> Gate::Shut(OneShot<Unit> empty) {
  AsyncMutex::Guard turn = co_await closer_.Lock();
  std::lock_guard lock(mutex_);
  closed_by_ = std::move(turn);
  closed_ = true;
  if (inside_ == 0) co_return true;
  empty_.push_back(empty);
  co_return false;
}

Task<void> Gate::Close() {
  OneShot<Unit> empty;
  const bool nobody = co_await Shut(empty);
  if (!nobody) co_await empty.Wait();
}

Task<void> Gate::CloseBetween(Clock& clock) {
  for (Duration closed_for = kFirstClosedFor;; closed_for = std::min(2 * closed_for, kMostClosedFor)) {
    OneShot<Unit> empty;
    const bool nobody = co_await Shut(empty);
    if (nobody) co_return;
    const bool left = co_await EndsWithin(clock, closed_for, Until(empty));
    if (left) co_return;
    Open();
    co_await clock.Sleep(kOpenFor);
  }
}

void Gate::Open() {
  std::vector<OneShot<Unit>> waiters;
  AsyncMutex::Guard turn;
  {
    std::lock_guard lock(mutex_);
    closed_ = false;
    waiters.swap(outside_);
    turn = std::move(closed_by_);
  }
  for (OneShot<Unit>& waiter : waiters) waiter.Set({});
}

void Gate::Out() {
  std::vector<OneShot<Unit>> waiters;
  {
    std::lock_guard lock(mutex_);
    if (--inside_ == 0) waiters.swap(empty_);
  }
  for (OneShot<Unit>& waiter : waiters) waiter.Set({});
}

}  // namespace nacre::client
