// The table of locks by itself: its bounds, and what it costs when much waits.
#include "server/metadata/lock_table.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <cerrno>

#include "rpc/convert.h"

namespace nacre::mds {
namespace {

proto::LockRange Lock(uint32_t file, uint64_t owner, uint32_t type, bool flock = false) {
  proto::LockRange lock;
  *lock.mutable_fid() = ToProto(Fid{100, file, 0});
  lock.set_owner(owner);
  lock.set_type(type);
  lock.set_end(~uint64_t{0});
  lock.set_flock(flock);
  return lock;
}

TEST(LockTable, BoundsTheWaitsOfASession) {
  LockTable table;
  const uint32_t files = LockTable::kMaxWaiting;
  for (uint32_t file = 0; file <= files; ++file) {
    ASSERT_TRUE(table.Set(1, Lock(file, 1, F_WRLCK), false, 0).status.ok());
    LockTable::Outcome outcome = table.Set(2, Lock(file, file, F_WRLCK), true, file + 1);
    if (file < files) {
      ASSERT_TRUE(outcome.pending.has_value()) << file << outcome.status;
    } else {
      EXPECT_EQ(ToErrno(outcome.status), ENOLCK);
    }
  }
  // One that ends makes room; others have room of their own.
  EXPECT_TRUE(table.Cancel(2, 7));
  EXPECT_FALSE(table.Cancel(2, 7));
  EXPECT_TRUE(table.Set(2, Lock(files, 9, F_WRLCK), true, files + 9).pending.has_value());
  EXPECT_TRUE(table.Set(3, Lock(0, 1, F_WRLCK), true, 1).pending.has_value());
  table.DropSession(2);
  table.DropSession(1);
  EXPECT_EQ(table.CountBySession(), (std::map<SessionId, uint64_t>{{3, 1}}));
}

// Whoever waits for something else does not make it dearer to see whether a wait would be a deadlock: the
// waits of all others were looked at for every new one before.
TEST(LockTable, ManyWaitsDoNotSlowEachOtherDown) {
  LockTable table;
  constexpr uint32_t kWaits = 20'000;
  ASSERT_TRUE(table.Set(1, Lock(0, 1, F_WRLCK), false, 0).status.ok());
  for (uint32_t i = 0; i < kWaits; ++i) {
    ASSERT_TRUE(table.Set(2, Lock(0, i, F_RDLCK), true, i + 1).pending.has_value());
  }
  ASSERT_TRUE(table.Set(1, Lock(0, 1, F_UNLCK), false, 0).status.ok());
  EXPECT_EQ(table.CountBySession(), (std::map<SessionId, uint64_t>{{2, kWaits}}));
}

TEST(LockTable, FindsACircleThroughSeveralFiles) {
  LockTable table;
  for (uint32_t i = 0; i < 4; ++i) ASSERT_TRUE(table.Set(i, Lock(i, i, F_WRLCK), false, 0).status.ok());
  for (uint32_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(table.Set(i, Lock(i + 1, i, F_WRLCK), true, 1).pending.has_value());
  }
  EXPECT_EQ(ToErrno(table.Set(3, Lock(0, 3, F_WRLCK), true, 1).status), EDEADLK);
  EXPECT_TRUE(table.Cancel(1, 1));  // the circle is open
  EXPECT_TRUE(table.Set(3, Lock(0, 3, F_WRLCK), true, 2).pending.has_value());
  // flocks are no part of it
  EXPECT_TRUE(table.Set(1, Lock(9, 1, F_WRLCK, true), false, 0).status.ok());
  EXPECT_TRUE(table.Set(2, Lock(9, 2, F_WRLCK, true), true, 5).pending.has_value());
}

}  // namespace
}  // namespace nacre::mds
