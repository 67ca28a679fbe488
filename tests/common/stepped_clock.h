// A clock that stands still until a test steps it. Its timers run by the real one.
#pragma once

#include <memory>
#include <utility>

#include "common/clock.h"

namespace nacre {

class SteppedClock : public Clock {
 public:
  Duration Now() override { return now; }
  WallTime Wall() override { return RealClock().Wall(); }
  std::unique_ptr<TimerHandle> After(const Executor& executor, Duration delay,
                                     absl::AnyInvocable<void()> function) override {
    return RealClock().After(executor, delay, std::move(function));
  }

  Duration now{1s};
};

}  // namespace nacre
