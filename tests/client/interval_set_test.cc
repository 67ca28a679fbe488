#include "client/interval_set.h"

#include <gtest/gtest.h>

#include <bitset>

#include "common/random.h"

namespace nacre::client {
namespace {

constexpr uint32_t kBytes = 64;

TEST(IntervalSet, AgreesWithABitmap) {
  SeededRandom random(7);
  for (int round = 0; round < 200; ++round) {
    IntervalSet set;
    std::bitset<kBytes> bits;
    for (int step = 0; step < 40; ++step) {
      uint32_t begin = static_cast<uint32_t>(random.Below(kBytes + 1));
      uint32_t end = begin + static_cast<uint32_t>(random.Below(kBytes + 1 - begin));
      bool add = random.OneIn(2);
      add ? set.Add(begin, end) : set.Remove(begin, end);
      for (uint32_t i = begin; i < end; ++i) bits[i] = add;

      ASSERT_EQ(set.Bytes(), bits.count());
      for (size_t i = 1; i < set.size(); ++i) ASSERT_LT(set.intervals()[i - 1].end, set.intervals()[i].begin);
      uint32_t from = static_cast<uint32_t>(random.Below(kBytes));
      uint32_t to = from + 1 + static_cast<uint32_t>(random.Below(kBytes - from));
      bool all = true, any = false;
      for (uint32_t i = from; i < to; ++i) (bits[i] ? any : all) = bits[i];
      ASSERT_EQ(set.Covers(from, to), all);
      ASSERT_EQ(set.Overlaps(from, to), any);
      std::bitset<kBytes> missing;
      for (const Interval& gap : set.Missing(from, to)) {
        for (uint32_t i = gap.begin; i < gap.end; ++i) missing[i] = true;
      }
      for (uint32_t i = 0; i < kBytes; ++i) ASSERT_EQ(missing[i], i >= from && i < to && !bits[i]);
    }
  }
}

}  // namespace
}  // namespace nacre::client
