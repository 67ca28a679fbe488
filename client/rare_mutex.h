// A mutex between coroutines that most inodes never need: it is made when it is locked for the first time.
//
// Thread-safe. Counted in a budget, which has to live longer.
#pragma once

#include <atomic>
#include <memory>

#include "client/memory_budget.h"
#include "common/task.h"

namespace nacre::client {

class RareMutex {
 public:
  explicit RareMutex(MemoryBudget& budget) : budget_(budget) {}
  ~RareMutex() {
    if (mutex_ != nullptr) budget_.CountInodes(-kBytes);
    delete mutex_.load();
  }
  RareMutex(const RareMutex&) = delete;
  RareMutex& operator=(const RareMutex&) = delete;

  Task<AsyncMutex::Guard> Lock() {
    AsyncMutex* mutex = mutex_;
    if (mutex == nullptr) {
      auto made = std::make_unique<AsyncMutex>();
      if (mutex_.compare_exchange_strong(mutex, made.get())) {
        mutex = made.release();
        budget_.CountInodes(kBytes);
      }
    }
    return mutex->Lock();
  }

 private:
  static constexpr int64_t kBytes = sizeof(AsyncMutex) + 624;  // its queue takes some when it is empty, too

  MemoryBudget& budget_;
  std::atomic<AsyncMutex*> mutex_{nullptr};
};

}  // namespace nacre::client
