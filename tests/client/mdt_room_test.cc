#include "client/mdt_room.h"

#include "client/inode_table.h"
#include "tests/client/cache_fixture.h"

namespace nacre::client {
namespace {

class MdtRoomTest : public CacheFixture {
 protected:
  MdtRoomTest() : inodes_(cache_, 1 << 20), a_(inodes_.Get({1, 1, 0})), b_(inodes_.Get({1, 2, 0})) {}

  ~MdtRoomTest() override { cache_->Drop(a_->data, 0, UINT64_MAX, nullptr); }

  // Bytes of the file wait in the cache for the objects.
  void Dirty(Inode& file) {
    ChunkPins spare = *cache_->TryAllocate(1);
    const DataCache::Write plan = cache_->PrepareWrite(file.data, 0, 1, &spare);
    ASSERT_FALSE(plan.pieces.empty());
    cache_->FinishWrite(file.data, plan, /*clean=*/false, [](uint64_t, uint64_t) {});
  }

  InodeTable inodes_;
  InodePtr a_, b_;
  MdtRoom room_;
};

TEST_F(MdtRoomTest, NoMoreIsHeldThanWasPromised) {
  EXPECT_FALSE(room_.any());
  EXPECT_FALSE(room_.TryHold(*a_, 1));
  room_.Promise(100);
  EXPECT_TRUE(room_.TryHold(*a_, 60));
  EXPECT_TRUE(room_.TryHold(*a_, 40)) << "it has more already";
  EXPECT_TRUE(room_.crowded());
  EXPECT_FALSE(room_.TryHold(*b_, 41));
  EXPECT_TRUE(room_.TryHold(*b_, 40)) << "the one before has changed nothing";
}

TEST_F(MdtRoomTest, WhatIsHeldStaysAsLongAsSomethingIsHeldBack) {
  room_.Promise(100);
  ASSERT_TRUE(room_.TryHold(*a_, 100));
  Dirty(*a_);
  room_.LetGo(*a_);
  EXPECT_FALSE(room_.TryHold(*b_, 1)) << "bytes of it are dirty in the cache";
  cache_->Drop(a_->data, 0, UINT64_MAX, nullptr);
  a_->pending.mtime = WallTime{1, 0};
  room_.LetGo(*a_);
  EXPECT_FALSE(room_.TryHold(*b_, 1)) << "the MDS has not been told of a time";
  a_->pending = {};
  room_.LetGo(*a_);
  EXPECT_TRUE(room_.TryHold(*b_, 100));
}

TEST_F(MdtRoomTest, AFileThatHasGoneHoldsNothing) {
  room_.Promise(100);
  ASSERT_TRUE(room_.TryHold(*a_, 100));
  Dirty(*a_);
  a_->gone = true;  // nobody is told any more
  room_.LetGo(*a_);
  EXPECT_TRUE(room_.TryHold(*b_, 100));
}

}  // namespace
}  // namespace nacre::client
