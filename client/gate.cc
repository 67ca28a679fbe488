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

}  // namespace

Gate::Pass Gate::TryEnter() {
  uint64_t state = state_.load(std::memory_order_relaxed);
  do {
    if ((state & kClosed) != 0) return {};
  } while (!state_.compare_exchange_weak(state, state + kOne));
  return Pass(this);
}

// Inside, or set when it is worth another try.
Gate::Pass Gate::EnterOrQueue(const OneShot<Unit>& opened) {
  std::lock_guard lock(mutex_);
  Pass pass = TryEnter();
  if (!pass) outside_.push_back(opened);
  return pass;
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
  if ((state_ |= kClosed) == kClosed) co_return true;
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
    const bool left = co_await ComesWithin(clock, closed_for, empty);
    if (left) co_return;
    Open();
    co_await clock.Sleep(kOpenFor);
  }
}

void Gate::Open() {
  std::vector<OneShot<Unit>> waiters, given_up;
  AsyncMutex::Guard turn;
  {
    std::lock_guard lock(mutex_);
    state_ &= ~kClosed;
    waiters.swap(outside_);
    given_up.swap(empty_);
    turn = std::move(closed_by_);
  }
  for (OneShot<Unit>& waiter : waiters) waiter.Set({});
  for (OneShot<Unit>& waiter : given_up) waiter.Set({});
}

void Gate::Out() {
  if ((state_ -= kOne) != kClosed) return;
  std::vector<OneShot<Unit>> waiters;
  {
    std::lock_guard lock(mutex_);
    if (state_ == kClosed) waiters.swap(empty_);
  }
  for (OneShot<Unit>& waiter : waiters) waiter.Set({});
}

}  // namespace nacre::client
