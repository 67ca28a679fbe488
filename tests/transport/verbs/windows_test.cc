#include "transport/verbs/windows.h"

#include <gtest/gtest.h>

#include "common/random.h"

namespace nacre::verbs {
namespace {

ibv_mr* const kOne = reinterpret_cast<ibv_mr*>(0x1000);
ibv_mr* const kOther = reinterpret_cast<ibv_mr*>(0x2000);

TEST(PlanWindows, ShowsEachPieceAloneIfItCan) {
  const WindowPlan plan = PlanWindows({{kOne, 500, 10}, {kOther, 100, 5}, {kOne, 100, 20}}, 8);
  ASSERT_EQ(plan.stretches.size(), 3u);
  const std::vector<RegisteredPiece> pieces = {{kOne, 500, 10}, {kOther, 100, 5}, {kOne, 100, 20}};
  for (size_t i = 0; i < pieces.size(); ++i) {
    const RegisteredPiece& stretch = plan.stretches[plan.stretch_of[i]];
    EXPECT_EQ(stretch.region, pieces[i].region);
    EXPECT_EQ(stretch.address, pieces[i].address);
    EXPECT_EQ(stretch.length, pieces[i].length);
  }
  EXPECT_TRUE(PlanWindows({}, 8).stretches.empty());
}

TEST(PlanWindows, JoinsWhatTouchesOrOverlaps) {
  const WindowPlan plan = PlanWindows({{kOne, 100, 50}, {kOne, 150, 10}, {kOne, 120, 10}}, 8);
  ASSERT_EQ(plan.stretches.size(), 1u);
  EXPECT_EQ(plan.stretches[0].address, 100u);
  EXPECT_EQ(plan.stretches[0].length, 60u);
}

TEST(PlanWindows, LeavesTheWidestGapsOut) {
  const WindowPlan plan =
      PlanWindows({{kOne, 0, 10}, {kOne, 20, 10}, {kOne, 1000, 10}, {kOne, 1030, 10}, {kOther, 5, 1}}, 3);
  ASSERT_EQ(plan.stretches.size(), 3u);
  EXPECT_EQ(plan.stretch_of[0], plan.stretch_of[1]);
  EXPECT_EQ(plan.stretch_of[2], plan.stretch_of[3]);
  EXPECT_NE(plan.stretch_of[0], plan.stretch_of[2]);
}

// Random blocks of a buffer of 64 GiB: the gaps that would have to be shared are longer than a device binds.
TEST(PlanWindows, NoStretchIsLongerThanADeviceBinds) {
  SeededRandom random(2);
  for (int round = 0; round < 300; ++round) {
    std::vector<RegisteredPiece> pieces;
    for (int i = 0; i < 16; ++i) pieces.push_back({kOne, random.Below(uint64_t{64} << 30), 64 << 10});
    const WindowPlan plan = PlanWindows(pieces, 8);
    EXPECT_LE(plan.stretches.size(), pieces.size());
    for (size_t i = 0; i < pieces.size(); ++i) {
      const RegisteredPiece& stretch = plan.stretches[plan.stretch_of[i]];
      EXPECT_LE(stretch.length, kLongestWindow);
      EXPECT_GE(pieces[i].address, stretch.address);
      EXPECT_LE(pieces[i].address + pieces[i].length, stretch.address + stretch.length);
    }
  }
}

// Each piece lies in its stretch, and stretches of one region have no byte in common, for all pieces.
TEST(PlanWindows, HoldsEveryPiece) {
  SeededRandom random(1);
  for (int round = 0; round < 300; ++round) {
    std::vector<RegisteredPiece> pieces;
    for (uint64_t i = random.Below(40); i > 0; --i) {
      pieces.push_back({random.Below(2) == 0 ? kOne : kOther, random.Below(10'000), 1 + random.Below(300)});
    }
    const size_t most = 2 + random.Below(7);
    const WindowPlan plan = PlanWindows(pieces, most);
    EXPECT_LE(plan.stretches.size(), most);
    for (size_t i = 0; i < pieces.size(); ++i) {
      const RegisteredPiece& stretch = plan.stretches[plan.stretch_of[i]];
      EXPECT_EQ(stretch.region, pieces[i].region);
      EXPECT_GE(pieces[i].address, stretch.address);
      EXPECT_LE(pieces[i].address + pieces[i].length, stretch.address + stretch.length);
    }
    for (size_t i = 1; i < plan.stretches.size(); ++i) {
      const RegisteredPiece &before = plan.stretches[i - 1], &stretch = plan.stretches[i];
      EXPECT_TRUE(before.region != stretch.region || before.address + before.length <= stretch.address);
    }
  }
}

}  // namespace
}  // namespace nacre::verbs
