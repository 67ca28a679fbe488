#include "server/object/allocator.h"

#include <gtest/gtest.h>

#include <set>

#include "common/random.h"

namespace nacre::ost {
namespace {

uint64_t Count(const std::vector<BlockRun>& runs) {
  uint64_t count = 0;
  for (const BlockRun& run : runs) count += run.count;
  return count;
}

void BackAll(Allocator* allocator) {
  while (auto group = allocator->UnbackedGroup()) allocator->SetBacked(*group);
}

TEST(Allocator, NothingIsAllocatedFromUnbackedGroups) {
  Allocator allocator(3 * kGroupBlocks);
  EXPECT_EQ(allocator.free_blocks(), 3 * kGroupBlocks);
  EXPECT_FALSE(allocator.Allocate(1, 0).has_value());
  auto group = allocator.UnbackedGroup();
  ASSERT_TRUE(group.has_value());
  allocator.SetBacked(*group);
  EXPECT_EQ(allocator.backed_free_blocks(), kGroupBlocks);
  EXPECT_FALSE(allocator.Allocate(kGroupBlocks + 1, 0).has_value());
  auto runs = allocator.Allocate(kGroupBlocks, 0);
  ASSERT_TRUE(runs.has_value());
  EXPECT_EQ(*runs, (std::vector<BlockRun>{{0, kGroupBlocks}}));
}

TEST(Allocator, LongRunsNextFitAndTheGoal) {
  Allocator allocator(1000);
  BackAll(&allocator);
  EXPECT_EQ(*allocator.Allocate(100, 0), (std::vector<BlockRun>{{0, 100}}));
  EXPECT_EQ(*allocator.Allocate(50, 500), (std::vector<BlockRun>{{500, 50}}));
  EXPECT_EQ(*allocator.Allocate(10, 550), (std::vector<BlockRun>{{550, 10}}));
  EXPECT_EQ(*allocator.Allocate(10, 100), (std::vector<BlockRun>{{100, 10}}));
  EXPECT_EQ(*allocator.Allocate(5, 520), (std::vector<BlockRun>{{110, 5}})) << "a goal in use is no goal";
  allocator.Free({{20, 5}});
  EXPECT_EQ(*allocator.Allocate(7, 20), (std::vector<BlockRun>{{20, 5}, {115, 2}}));
}

// The bits after the last block belong to nobody.
TEST(Allocator, AGoalNearTheEndStaysWithinTheDevice) {
  Allocator allocator(1000);
  BackAll(&allocator);
  EXPECT_EQ(*allocator.Allocate(30, 990), (std::vector<BlockRun>{{990, 10}, {0, 20}}));
  EXPECT_EQ(allocator.free_blocks(), 970u);
}

TEST(Allocator, ScanFindsWhatIsUsedAndDoubleUse) {
  Allocator allocator(2 * kGroupBlocks);
  EXPECT_TRUE(allocator.MarkUsed(kGroupBlocks + 3));
  EXPECT_FALSE(allocator.MarkUsed(kGroupBlocks + 3));
  EXPECT_FALSE(allocator.MarkUsed(2 * kGroupBlocks));
  allocator.FinishScan();
  EXPECT_EQ(allocator.backed_free_blocks(), kGroupBlocks - 1);
  EXPECT_EQ(allocator.free_blocks(), 2 * kGroupBlocks - 1);
}

TEST(Allocator, EmptyGroupsCanBeGivenBack) {
  Allocator allocator(5 * kGroupBlocks);
  BackAll(&allocator);
  auto runs = allocator.Allocate(10, kGroupBlocks);
  ASSERT_TRUE(runs.has_value());
  auto groups = allocator.TakeEmptyGroups(3 * kGroupBlocks - 10, 5);
  EXPECT_EQ(groups,
            (std::vector<BlockRun>{{4 * kGroupBlocks, kGroupBlocks}, {3 * kGroupBlocks, kGroupBlocks}}));
  EXPECT_EQ(allocator.Unbacked(), (std::vector<BlockRun>{{3 * kGroupBlocks, 2 * kGroupBlocks}}));
  EXPECT_EQ(allocator.backed_free_blocks(), 3 * kGroupBlocks - 10);
  EXPECT_EQ(allocator.free_blocks(), 5 * kGroupBlocks - 10);
  EXPECT_EQ(allocator.UnbackedGroup()->first, 3 * kGroupBlocks);
}

TEST(Allocator, AgreesWithASet) {
  SeededRandom random(5);
  constexpr uint64_t kBlocks = 3 * kGroupBlocks + 777;
  Allocator allocator(kBlocks);
  BackAll(&allocator);
  std::vector<std::vector<BlockRun>> held;
  uint64_t used = 0;
  for (int i = 0; i < 2000; ++i) {
    if (!held.empty() && random.OneIn(2)) {
      size_t at = random.Below(held.size());
      used -= Count(held[at]);
      allocator.Free(held[at]);
      for (const BlockRun& run : held[at]) EXPECT_FALSE(allocator.IsUsed(run.first));
      held[at] = std::move(held.back());
      held.pop_back();
      continue;
    }
    uint64_t want = 1 + random.Below(2000);
    auto runs = allocator.Allocate(want, random.Below(kBlocks));
    ASSERT_EQ(runs.has_value(), used + want <= kBlocks);
    if (!runs) continue;
    EXPECT_EQ(Count(*runs), want);
    used += want;
    held.push_back(*std::move(runs));
    EXPECT_EQ(allocator.free_blocks(), kBlocks - used);
  }
  std::set<uint64_t> seen;
  for (const auto& runs : held) {
    for (const BlockRun& run : runs) {
      for (uint64_t b = run.first; b < run.first + run.count; ++b)
        EXPECT_TRUE(seen.insert(b).second) << "twice: " << b;
    }
  }
}

}  // namespace
}  // namespace nacre::ost
