// For how long polling goes on after a completion before one waits for an event instead, which costs a system
// call and a wake-up: as long as the next completion is likely to come in that time. Not thread-safe.
#pragma once

#include <algorithm>

#include "common/clock.h"

namespace nacre::verbs {

class Patience {
 public:
  // `least`: always so long after a completion.
  explicit Patience(Duration least) : least_(least), now_(least) {}

  // Completions came, the last ones before them at `before`.
  void Came(Duration before, Duration now) {
    const Duration gap = now - before;
    now_ = gap <= kMost ? std::max(now_, 2 * gap) : now_ / 2;
    now_ = std::clamp(now_, least_, std::max(kMost, least_));
  }

  Duration current() const { return now_; }

 private:
  // A busy network answers sooner; what takes longer is a disk or a user, and no reason to keep a CPU busy
  // that whoever is waited for may need.
  static constexpr Duration kMost = std::chrono::milliseconds(1);

  const Duration least_;
  Duration now_;
};

}  // namespace nacre::verbs
