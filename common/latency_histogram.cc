#include "common/latency_histogram.h"

#include <algorithm>
#include <bit>

namespace nacre {
namespace {

// Numbers below 4 have a bucket each; above, the two bits behind the highest one choose among four.
size_t BucketOf(uint64_t micros) {
  if (micros < 4) return micros;
  const auto doublings = static_cast<size_t>(std::bit_width(micros)) - 3;
  return 4 * doublings + (micros >> doublings);
}

// The largest number that belongs to the bucket.
uint64_t TopOf(size_t bucket) {
  if (bucket < 8) return bucket;
  const size_t doublings = bucket / 4 - 1;
  return ((bucket % 4 + 5) << doublings) - 1;
}

}  // namespace

void LatencyHistogram::Add(Duration took) {
  const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(took).count();
  const size_t bucket = BucketOf(static_cast<uint64_t>(std::max<int64_t>(micros, 0)));
  buckets_[std::min(bucket, kBuckets - 1)].fetch_add(1, std::memory_order_relaxed);
}

uint64_t LatencyHistogram::Micros(double part) const {
  std::array<uint64_t, kBuckets> counts;
  uint64_t total = 0;
  for (size_t i = 0; i < kBuckets; ++i) total += counts[i] = buckets_[i].load(std::memory_order_relaxed);
  if (total == 0) return 0;
  const auto wanted = static_cast<uint64_t>(part * static_cast<double>(total));
  uint64_t seen = 0;
  for (size_t i = 0; i < kBuckets; ++i) {
    seen += counts[i];
    if (seen > 0 && seen >= wanted) return TopOf(i);
  }
  return TopOf(kBuckets - 1);
}

}  // namespace nacre
