#include "server/metadata/peace.h"

#include <gtest/gtest.h>

namespace nacre::mds {
namespace {

using namespace std::chrono_literals;

constexpr Fid kShared{1, 1, 0}, kQuiet{1, 2, 0};

TEST(Peace, IsShortForWhoMeetsOnce) {
  Peace peace(5s);
  EXPECT_EQ(peace.BeginsAt(100s, kShared), 100s + 500ms);
  EXPECT_EQ(peace.BeginsAt(100s, kQuiet), 100s + 500ms);
}

TEST(Peace, StaysShortWhereConflictsAreRare) {
  Peace peace(5s);
  for (Duration now = 100s; now < 200s; now += 5s) EXPECT_EQ(peace.BeginsAt(now, kShared), now + 500ms);
}

TEST(Peace, GrowsWhereTheyFollowEachOther) {
  Peace peace(5s);
  EXPECT_EQ(peace.BeginsAt(100s, kShared), 100s + 500ms);
  EXPECT_EQ(peace.BeginsAt(101s, kShared), 103s);
  EXPECT_EQ(peace.BeginsAt(104s, kShared), 109s);
  EXPECT_EQ(peace.BeginsAt(109s, kShared), 114s) << "no longer than the longest";
  EXPECT_EQ(peace.BeginsAt(140s, kShared), 145s) << "soon, for so long a peace";
  EXPECT_EQ(peace.BeginsAt(145s, kQuiet), 145s + 500ms) << "another's business";
}

TEST(Peace, ShrinksAgain) {
  Peace peace(5s);
  for (Duration now = 100s; now < 120s; now += 1s) peace.BeginsAt(now, kShared);
  const Duration later = 124s + 41s;
  EXPECT_EQ(peace.BeginsAt(later, kShared), later + 1250ms);
  const Duration much_later = later + 1000s;
  EXPECT_EQ(peace.BeginsAt(much_later, kShared), much_later + 500ms);
}

// Two requests that conflict at the same time, for one: what was said before holds.
TEST(Peace, IsNeverCutShort) {
  Peace peace(5s);
  for (int i = 0; i < 3; ++i) peace.BeginsAt(100s, kShared);
  EXPECT_EQ(peace.BeginsAt(100s, kShared), 105s);
}

TEST(Peace, MayBeNone) {
  Peace peace(0s);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(peace.BeginsAt(100s, kShared), 100s);
}

}  // namespace
}  // namespace nacre::mds
