#include "common/latency_histogram.h"

#include <gtest/gtest.h>

namespace nacre {
namespace {

TEST(LatencyHistogram, TellsPercentilesAtMostAFifthTooHigh) {
  LatencyHistogram histogram;
  EXPECT_EQ(histogram.Micros(0.5), 0u);
  for (int i = 1; i <= 1000; ++i) histogram.Add(std::chrono::microseconds(i));
  for (const auto& [part, exact] : {std::pair(0.01, 10), {0.5, 500}, {0.99, 990}, {1.0, 1000}}) {
    EXPECT_GE(histogram.Micros(part), static_cast<uint64_t>(exact));
    EXPECT_LE(histogram.Micros(part), static_cast<uint64_t>(exact + exact / 5 + 1));
  }
}

TEST(LatencyHistogram, TakesAnyDuration) {
  LatencyHistogram histogram;
  histogram.Add(Duration(-1));
  histogram.Add(Duration::max());
  EXPECT_EQ(histogram.Micros(0.5), 0u);
  EXPECT_GT(histogram.Micros(1), 3600u * 1'000'000);
}

TEST(LatencyHistogram, OneSlowOneDoesNotMoveTheMedian) {
  LatencyHistogram histogram;
  for (int i = 0; i < 99; ++i) histogram.Add(3us);
  histogram.Add(1s);
  EXPECT_EQ(histogram.Micros(0.5), 3u);
  EXPECT_EQ(histogram.Micros(0.99), 3u);
  EXPECT_GE(histogram.Micros(1), 1'000'000u);
}

}  // namespace
}  // namespace nacre
