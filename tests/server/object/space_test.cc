// Space that an OST takes from the disk below, and gives back to it: others may need that disk, too.
#include "server/object/space.h"

#include <gtest/gtest.h>

#include "tests/server/object/store_fixture.h"

namespace nacre::ost {
namespace {

class SpaceTest : public testing::Test {
 protected:
  void Make(uint64_t available_groups) {
    MemBlockStoreOptions options;
    options.clock = &RealClock();
    options.random = &random_;
    options.available_blocks = available_groups * kGroupBlocks;
    disk_.emplace(100 * kGroupBlocks, options);
    Start();
  }

  // As after a restart of a server that has no objects.
  void Start() {
    space_.emplace(&*disk_, "the OST under test");
    space_->allocator().FinishScan();
    EXPECT_TRUE(RunTask(space_->DiscardUnbacked()).ok());
  }

  void FillAndFree(uint64_t groups) {
    auto runs = RunTask(space_->Allocate({.blocks = groups * kGroupBlocks}));
    ASSERT_TRUE(runs.ok()) << runs.status();
    space_->allocator().Free(*runs);
  }

  uint64_t available_groups() const { return disk_->available_blocks() / kGroupBlocks; }

  SeededRandom random_{1};
  std::optional<MemBlockStore> disk_;
  std::optional<Space> space_;
};

TEST_F(SpaceTest, KeepsSomeGroupsWhileTheDiskBelowHasRoom) {
  Make(60);
  FillAndFree(7);
  ASSERT_TRUE(RunTask(space_->Trim()).ok());
  uint64_t kept = 60 - available_groups();
  EXPECT_GE(kept, 2u);
  EXPECT_LE(kept, 3u);  // the reserve is a part of a group
}

TEST_F(SpaceTest, LeavesScarceSpaceToOthersButForWhatIsPromised) {
  Make(8);
  FillAndFree(5);
  uint64_t promised = 2 * kGroupBlocks;
  EXPECT_EQ(RunTask(space_->Promise(promised)), promised);
  ASSERT_TRUE(RunTask(space_->Trim()).ok());
  EXPECT_EQ(available_groups(), 8u - 3u);  // two for the promise, one for the reserve
  space_->Release(promised);
  ASSERT_TRUE(RunTask(space_->Trim()).ok());
  EXPECT_EQ(available_groups(), 8u - 1u);
  FillAndFree(7);  // and can have it again
}

TEST_F(SpaceTest, ARestartGivesBackWhatIsEmpty) {
  Make(8);
  FillAndFree(6);
  ASSERT_LE(available_groups(), 2u);
  Start();
  EXPECT_EQ(available_groups(), 8u);
  FillAndFree(6);
}

}  // namespace
}  // namespace nacre::ost
