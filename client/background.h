// Tasks of a mount for which nobody waits at once, and for whose end Unmount does. Thread-safe; must outlive
// its tasks, which Drain is for.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "common/task.h"

namespace nacre::client {

class Background {
 public:
  explicit Background(Executor executor) : executor_(std::move(executor)) {}
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  // Begins the task. The returned OneShot is set when the task has ended.
  OneShot<Unit> Start(Task<void> task);
  // Returns when no task is under way.
  Task<void> Drain();

 private:
  void Ended();

  const Executor executor_;
  std::mutex mutex_;
  uint64_t under_way_ = 0;
  std::vector<OneShot<Unit>> draining_;
};

}  // namespace nacre::client
