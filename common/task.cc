#include "common/task.h"

#include <cstdlib>
#include <exception>

#include "common/log.h"

namespace nacre {

void DieOfException(std::exception_ptr exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const std::exception& e) {
    LogError("a task ended by an exception: %s", e.what());
  } catch (...) {
    LogError("a task ended by an exception of unknown type");
  }
  std::abort();
}

void Spawn(const Executor& executor, Task<void> task) {
  asio::co_spawn(executor, std::move(task), [](std::exception_ptr exception) {
    if (exception) DieOfException(exception);
  });
}

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
