// Something that happens once and that any number of tasks may wait for, each by a OneShot of its own, which
// it may also set itself to give up (common/cancellation.h). Thread-safe.
#pragma once

#include <mutex>
#include <utility>
#include <vector>

#include "common/task.h"

namespace nacre {

class Event {
 public:
  Event() = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void Set() {
    std::vector<OneShot<Unit>> waiters;
    {
      std::lock_guard lock(mutex_);
      set_ = true;
      waiters.swap(waiters_);
    }
    for (const OneShot<Unit>& waiter : waiters) waiter.Set({});
  }

  // Is set when the event has happened, which may be already.
  OneShot<Unit> Await() {
    OneShot<Unit> waiter;
    std::unique_lock lock(mutex_);
    if (!set_) {
      waiters_.push_back(waiter);
      return waiter;
    }
    lock.unlock();
    waiter.Set({});
    return waiter;
  }

 private:
  std::mutex mutex_;
  bool set_ = false;
  std::vector<OneShot<Unit>> waiters_;
};

}  // namespace nacre
