// One timer for many deadlines. Calls nearly always end long before their deadline, so a timer for each would
// be made only to be cancelled; here a deadline that comes after the one already waited for costs one
// comparison.
//
// Thread-safe. Keep it in a shared_ptr: a pending timer refers to it weakly.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>

#include "common/clock.h"
#include "common/task.h"

namespace nacre {

inline constexpr Duration kNoDeadline = Duration::max();
inline constexpr Duration kNow = Duration::zero();  // a deadline that is over: look at once

// now + timeout without overflow.
inline Duration DeadlineAfter(Duration now, Duration timeout) {
  return timeout > kNoDeadline - now ? kNoDeadline : now + timeout;
}

class Watchdog : public std::enable_shared_from_this<Watchdog> {
 public:
  // `expire` is called with the time; it ends what has expired and returns the next deadline (kNoDeadline:
  // none). It is never called from within Arm, nor concurrently with itself; after Stop has returned it does
  // not start any more.
  Watchdog(Executor executor, Clock& clock, absl::AnyInvocable<Duration(Duration now)> expire)
      : executor_(std::move(executor)), clock_(clock), expire_(std::move(expire)) {}

  // Makes sure that `expire` runs at this time.
  void Arm(Duration deadline);
  void Stop();

 private:
  void Fire(uint64_t generation);
  void SetTimer(Duration deadline);  // under mutex_

  const Executor executor_;
  Clock& clock_;
  std::mutex expire_mutex_;  // taken before mutex_
  absl::AnyInvocable<Duration(Duration now)> expire_;
  std::mutex mutex_;
  std::atomic<Duration> armed_ = kNoDeadline;  // set under mutex_
  uint64_t generation_ = 0;                    // of the timer; an older one that fires late does nothing
  std::unique_ptr<TimerHandle> timer_;
  bool stopped_ = false;
};

}  // namespace nacre
