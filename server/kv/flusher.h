// Makes a store's log durable for whoever waits, on a thread of its own: one flush serves all that came
// before it began. Thread-safe. The destructor returns when all that were added have been answered.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "common/status.h"
#include "common/task.h"

namespace nacre {

class Flusher {
 public:
  explicit Flusher(std::function<Status()> flush);
  ~Flusher();
  Flusher(const Flusher&) = delete;
  Flusher& operator=(const Flusher&) = delete;

  // `done` is set to what a flush returned that began afterwards.
  void Add(OneShot<Status> done);

 private:
  void Run();

  const std::function<Status()> flush_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<OneShot<Status>> waiters_;
  bool stopping_ = false;
  std::thread thread_;  // last: starts when the rest stands
};

}  // namespace nacre
