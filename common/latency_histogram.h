// How long many things took, in a few hundred bytes: four buckets for each doubling, so a percentile is told
// up to a fifth too high. Thread-safe; what is added while it is read may be counted or not.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "common/clock.h"

namespace nacre {

class LatencyHistogram {
 public:
  void Add(Duration took);

  // No more than `part` (0 to 1) of what was added took longer, in microseconds; 0: nothing was added.
  uint64_t Micros(double part) const;

 private:
  static constexpr size_t kBuckets = 4 * 32;  // to more than an hour

  std::array<std::atomic<uint64_t>, kBuckets> buckets_{};
};

}  // namespace nacre
