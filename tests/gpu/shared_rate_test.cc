#include "gpu/shared_rate.h"

#include <gtest/gtest.h>

namespace nacre::gpu {
namespace {

using std::chrono::microseconds;

constexpr uint64_t kMiB = 1 << 20;

// Microseconds, about, that so much will take from now on.
int64_t Expected(SharedRate* rate, uint64_t bytes, EngineTime now) {
  return std::chrono::duration_cast<microseconds>(rate->Begin(bytes, now) - now).count();
}

TEST(SharedRate, WhatSharesTheWayIsWaitedFor) {
  SharedRate rate;
  const EngineTime now;
  const int64_t alone = Expected(&rate, 8 * kMiB, now);
  EXPECT_NEAR(Expected(&rate, 8 * kMiB, now), 2 * alone, 10);
  rate.End(8 * kMiB, now + microseconds(alone));
  EXPECT_NEAR(Expected(&rate, 8 * kMiB, now + microseconds(alone)), 2 * alone, 10);
}

TEST(SharedRate, TwoHalvesThatEndTogetherAreNotFast) {
  SharedRate rate;
  EngineTime now;
  // 16 MiB in 320 µs, of which two streams have a half each: the second ends right behind the first.
  for (int i = 0; i < 100; ++i) {
    rate.Begin(8 * kMiB, now);
    rate.Begin(8 * kMiB, now);
    now += microseconds(320);
    rate.End(8 * kMiB, now);
    rate.End(8 * kMiB, now + microseconds(1));
    now += microseconds(1000);  // nothing to do meanwhile
  }
  EXPECT_NEAR(Expected(&rate, 16 * kMiB, now), 320, 10);
}

TEST(SharedRate, WithoutAPauseItLearnsAllTheSame) {
  SharedRate rate;
  EngineTime now;
  rate.Begin(4 * kMiB, now);
  for (int i = 0; i < 100; ++i) {
    rate.Begin(4 * kMiB, now);
    now += microseconds(80);
    rate.End(4 * kMiB, now);
  }
  EXPECT_NEAR(Expected(&rate, 4 * kMiB, now), 160, 10);
}

TEST(SharedRate, ALateLookIsSoonForgotten) {
  SharedRate rate;
  EngineTime now;
  const auto copy = [&](int took) {
    rate.Begin(16 * kMiB, now);
    now += microseconds(took);
    rate.End(16 * kMiB, now);
  };
  copy(320);
  copy(3200);
  EXPECT_LT(Expected(&rate, 16 * kMiB, now), 360);
  rate.End(16 * kMiB, now + microseconds(320));
  // A way that has become slower is believed when it stays so.
  for (int i = 0; i < 100; ++i) copy(640);
  EXPECT_NEAR(Expected(&rate, 16 * kMiB, now), 640, 30);
}

TEST(SharedRate, LittleSaysNothing) {
  SharedRate rate;
  EngineTime now;
  const int64_t before = Expected(&rate, 16 * kMiB, now);
  rate.End(16 * kMiB, now + microseconds(before));
  now += microseconds(1000);
  for (int i = 0; i < 100; ++i) {
    rate.Begin(4096, now);
    now += microseconds(10);
    rate.End(4096, now);
  }
  EXPECT_NEAR(Expected(&rate, 16 * kMiB, now), before, 10);
}

}  // namespace
}  // namespace nacre::gpu
