// Bounds for tasks that may wait for a server which never comes back.
#pragma once

#include <memory>

#include "common/clock.h"
#include "common/status.h"
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

// The same of an event.
inline Task<bool> ComesWithin(Clock& clock, Duration limit, OneShot<Unit> event) {
  Task<void> wait = [](OneShot<Unit> awaited) -> Task<void> { co_await awaited.Wait(); }(std::move(event));
  return EndsWithin(clock, limit, std::move(wait));
}

// Returns when the clock shows `when`.
inline Task<void> SleepUntil(Clock& clock, Duration when) {
  const Duration left = when - clock.Now();
  if (left > 0ns) co_await clock.Sleep(left);
}

// Runs the task and keeps what it returns, for somebody who may not wait for its end.
inline Task<void> KeepStatus(std::shared_ptr<Status> status, Task<Status> task) {
  *status = co_await std::move(task);
}

}  // namespace nacre::client
