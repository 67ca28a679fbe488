// Time as a seam: the real clock, or the simulation's.
#pragma once

#include <absl/functional/any_invocable.h>

#include <chrono>
#include <memory>

#include "common/task.h"

namespace nacre {

using Duration = std::chrono::nanoseconds;
using namespace std::chrono_literals;

// Nanoseconds since 1970 (may be negative) for what users see.
struct WallTime {
  int64_t seconds = 0;
  uint32_t nanos = 0;
  auto operator<=>(const WallTime&) const = default;
};

// A pending call; its destruction cancels it. After cancellation has returned the function does not start any
// more (it may still be running on another thread).
class TimerHandle {
 public:
  virtual ~TimerHandle() = default;
};

// How long so many bytes take at a rate of so many a second, which is not 0.
inline Duration TimeFor(uint64_t bytes, uint64_t bytes_per_second) {
  return std::chrono::duration_cast<Duration>(
      std::chrono::duration<double>(static_cast<double>(bytes) / static_cast<double>(bytes_per_second)));
}

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;

  // Monotonic; the zero is arbitrary.
  virtual Duration Now() = 0;
  virtual WallTime Wall() = 0;
  // Now() as it was no more than 10 ms ago, for deadlines: never dear, as the other may be (in a guest whose
  // kernel asks an emulated timer, it takes longer than a small call's own work).
  virtual Duration Coarse() { return Now(); }

  // Runs the function on the executor after the delay unless the handle is destroyed before.
  [[nodiscard]] virtual std::unique_ptr<TimerHandle> After(const Executor& executor, Duration delay,
                                                           absl::AnyInvocable<void()> function) = 0;

  Task<void> Sleep(Duration delay);
};

// One for the process.
Clock& RealClock();

}  // namespace nacre
