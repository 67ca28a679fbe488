// Holds up whoever comes while it is closed: the state after a restart, until what must be known again is
// known. Open at first. Thread-safe; asking an open one takes no lock.
#pragma once

#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

#include "common/task.h"

namespace nacre {

class Latch {
 public:
  void Close() { closed_ = true; }

  // Lets go on whoever waits.
  void Open() {
    std::vector<OneShot<Unit>> waiters;
    {
      std::lock_guard lock(mutex_);
      closed_ = false;
      waiters.swap(waiters_);
    }
    for (const auto& waiter : waiters) waiter.Set({});
  }

  bool closed() const { return closed_; }

  // Returns when it is open.
  Task<void> Wait() {
    OneShot<Unit> opened;
    {
      std::lock_guard lock(mutex_);
      if (!closed_) co_return;
      waiters_.push_back(opened);
    }
    co_await opened.Wait();
  }

 private:
  std::atomic<bool> closed_ = false;
  std::mutex mutex_;
  std::vector<OneShot<Unit>> waiters_;
};

}  // namespace nacre
