#include "server/metadata/inode_cache.h"

#include <gtest/gtest.h>

namespace nacre::mds {
namespace {

const Fid kCached{5, 1, 0};

InodePtr MakeInode(uint64_t size) {
  auto inode = std::make_shared<Inode>();
  inode->fid = kCached;
  inode->size = size;
  return inode;
}

class InodeCacheTest : public testing::Test {
 protected:
  uint64_t Ask() {
    uint64_t ticket = 0;
    cache.Find(kCached, &ticket);
    return ticket;
  }
  InodePtr Found() {
    uint64_t ticket = 0;
    return cache.Find(kCached, &ticket);
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
  cache.BeginWrite(kCached);
  cache.Insert(MakeInode(1), ticket);
  EXPECT_EQ(Found(), nullptr);
  cache.EndWrite(kCached, MakeInode(2));
  cache.Insert(MakeInode(1), ticket);
  EXPECT_EQ(Found()->size, 2u);
}

TEST_F(InodeCacheTest, AReaderFromDuringAWriteInsertsNothing) {
  cache.BeginWrite(kCached);
  uint64_t ticket = Ask();
  cache.EndWrite(kCached, MakeInode(2));
  cache.Insert(MakeInode(1), ticket);
  ASSERT_NE(Found(), nullptr);
  EXPECT_EQ(Found()->size, 2u);
}

TEST_F(InodeCacheTest, AFailedWriteLeavesNothing) {
  cache.Insert(MakeInode(1), Ask());
  cache.BeginWrite(kCached);
  cache.EndWrite(kCached, nullptr);
  EXPECT_EQ(Found(), nullptr);
  cache.Insert(MakeInode(1), Ask());
  EXPECT_EQ(Found()->size, 1u);
}

}  // namespace
}  // namespace nacre::mds
