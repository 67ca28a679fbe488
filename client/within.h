// A bound for a task that may wait for a server which never comes back.
#pragma once

#include "common/clock.h"
#include "common/task.h"

namespace nacre::client {

// Runs the task and returns whether it has ended within `limit`. If not, it goes on by itself: it must keep
// alive what it uses, or whoever owns that must wait for it.
inline Task<bool> EndsWithin(Clock& clock, Duration limit, Task<void> task) {
  OneShot<bool> decided;
  const Executor executor = co_await CurrentExecutor();
  const std::unique_ptr<TimerHandle> timer = clock.After(executor, limit, [decided] { decided.Set(false); });
  Spawn(executor, std::move(task), [decided] { decided.Set(true); });
  co_return co_await decided.Wait();
}

}  // namespace nacre::client
