#include "common/task.h"

namespace nacre {

Task<AsyncMutex::Guard> AsyncMutex::Lock() {
  OneShot<Unit> turn;
  {
    std::lock_guard lock(mutex_);
    if (!locked_) {
      locked_ = true;
      co_return Guard(this);
    }
    waiters_.push_back(turn);
  }
  co_await turn.Wait();
  co_return Guard(this);
}

void AsyncMutex::Unlock() {
  std::optional<OneShot<Unit>> next;
  {
    std::lock_guard lock(mutex_);
    if (waiters_.empty()) {
      locked_ = false;
      return;
    }
    next = std::move(waiters_.front());
    waiters_.pop_front();
  }
  next->Set({});
}

}  // namespace nacre
