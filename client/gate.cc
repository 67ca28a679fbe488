#include "client/gate.h"

#include "common/cancellation.h"

namespace nacre::client {

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

Task<void> Gate::Close() {
  AsyncMutex::Guard turn = co_await closer_.Lock();
  OneShot<Unit> empty;
  bool wait;
  {
    std::lock_guard lock(mutex_);
    closed_by_ = std::move(turn);
    closed_ = true;
    wait = inside_ > 0;
    if (wait) empty_.push_back(empty);
  }
  if (wait) co_await empty.Wait();
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
