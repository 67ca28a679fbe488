// Makes a store's log durable for whoever waits, on a thread of its own: one flush serves all that came
// before it began. Thread-safe. The destructor returns when all that were added have been answered.
#pragma once

#include <functional>
#include <mutex>
#include <vector>

#include "common/status.h"
#include "common/task.h"
#include "server/kv/own_thread.h"

namespace nacre {

class Flusher {
 public:
  explicit Flusher(std::function<Status()> flush);

  // `done` is set to what a flush returned that began afterwards.
  void Add(OneShot<Status> done);

 private:
  void Serve();

  const std::function<Status()> flush_;
  std::mutex mutex_;
  std::vector<OneShot<Status>> waiters_;  // for the next flush
  OwnThread thread_;                      // last: what it has been given still finds the rest
};

}  // namespace nacre
