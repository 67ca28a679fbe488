#include "server/metadata/inode_cache.h"

#include <gtest/gtest.h>

namespace nacre::mds {
namespace {

const Fid kFid{5, 1, 0};

InodePtr MakeInode(uint64_t size) {
  auto inode = std::make_shared<Inode>();
  inode->fid = kFid;
  inode->size = size;
  return inode;
}

class InodeCacheTest : public testing::Test {
 protected:
  uint64_t Ask() {
    uint64_t ticket = 0;
    cache.Find(kFid, &ticket);
    return ticket;
  }
  InodePtr Found() {
    uint64_t ticket = 0;
    return cache.Find(kFid, &ticket);
  }

  InodeCache cache{100};
};

TEST_F(InodeCacheTest, KeepsWhatWasRead) {
  cache.Insert(MakeInode(1), Ask());
  ASSERT_NE(Found(), nullptr);
  EXPECT_EQ(Found()->size, 1u);
}

TEST_F(InodeCacheTest, AReaderFromBeforeAWriteInsertsNothing) {
  uint64_t ticket = Ask();
  cache.BeginWrite(kFid);
  cache.Insert(MakeInode(1), ticket);
  EXPECT_EQ(Found(), nullptr);
  cache.EndWrite(kFid, MakeInode(2));
  cache.Insert(MakeInode(1), ticket);
  EXPECT_EQ(Found()->size, 2u);
}

TEST_F(InodeCacheTest, AReaderFromDuringAWriteInsertsNothing) {
  cache.BeginWrite(kFid);
  uint64_t ticket = Ask();
  cache.EndWrite(kFid, MakeInode(2));
  cache.Insert(MakeInode(1), ticket);
  ASSERT_NE(Found(), nullptr);
  EXPECT_EQ(Found()->size, 2u);
}

TEST_F(InodeCacheTest, AFailedWriteLeavesNothing) {
  cache.Insert(MakeInode(1), Ask());
  cache.BeginWrite(kFid);
  cache.EndWrite(kFid, nullptr);
  EXPECT_EQ(Found(), nullptr);
  cache.Insert(MakeInode(1), Ask());
  EXPECT_EQ(Found()->size, 1u);
}

}  // namespace
}  // namespace nacre::mds
