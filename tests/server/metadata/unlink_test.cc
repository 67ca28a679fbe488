// Unlink and rmdir: what may go, by whom, and what the directory says afterwards.
#include "tests/server/metadata/harness.h"

namespace nacre::mds {
namespace {

class UnlinkTest : public testing::Test {
 protected:
  Harness harness;
  TestClient client{harness};
};

TEST_F(UnlinkTest, FilesByUnlinkAndDirectoriesByRmdir) {
  ASSERT_THAT(client.Mknod(kRootFid, "f", S_IFREG | 0644), IsOk());
  ASSERT_THAT(client.Mkdir(kRootFid, "d"), IsOk());
  EXPECT_THAT(client.Unlink(kRootFid, "d"), Fails(EISDIR));
  EXPECT_THAT(client.Rmdir(kRootFid, "f"), Fails(ENOTDIR));
  EXPECT_THAT(client.Rmdir(kRootFid, "."), Fails(EINVAL));
  EXPECT_THAT(client.Rmdir(kRootFid, ".."), Fails(ENOTEMPTY));
  EXPECT_THAT(client.Unlink(kRootFid, "none"), Fails(ENOENT));
  auto gone = client.Unlink(kRootFid, "f");
  ASSERT_THAT(gone, IsOk());
  EXPECT_EQ(gone.attr().parent().size(), 1u);
  gone = client.Rmdir(kRootFid, "d");
  ASSERT_THAT(gone, IsOk());
  EXPECT_EQ(gone.attr().parent().size(), 0u);
  EXPECT_EQ(gone.attr().parent().nlink(), 2u);
}

TEST_F(UnlinkTest, StickyDirectoriesGuardOtherPeoplesFiles) {
  const Fid dir = FidOf(client.Mkdir(kRootFid, "d", 01777));
  client.As(1000, 1000);
  ASSERT_THAT(client.Mknod(dir, "mine", S_IFREG | 0666), IsOk());
  client.As(2000, 2000);
  EXPECT_THAT(client.Unlink(dir, "mine"), Fails(EPERM));
  client.As(1000, 1000);
  EXPECT_THAT(client.Unlink(dir, "mine"), IsOk());
}

TEST_F(UnlinkTest, NeedsWriteAndSearchPermission) {
  const Fid dir = FidOf(client.Mkdir(kRootFid, "d", 0755));
  ASSERT_THAT(client.Mknod(dir, "f", S_IFREG | 0666), IsOk());
  client.As(1000, 1000);
  EXPECT_THAT(client.Unlink(dir, "f"), Fails(EACCES));
}

// The objects of a file that had any go to the destroy queue, and from there off the OSTs.
TEST_F(UnlinkTest, ObjectsAreDestroyedInTheBackground) {
  const Fid file = FidOf(client.Create(kRootFid, "f"));
  proto::MetadataRequest write;
  *write.mutable_write_inline()->mutable_fid() = ToProto(file);
  write.mutable_write_inline()->set_data("moves out");
  ASSERT_THAT(client.Call(write), IsOk());
  proto::MetadataRequest move;
  *move.mutable_move_out()->mutable_fid() = ToProto(file);
  ASSERT_THAT(client.Call(move), IsOk());
  EXPECT_EQ(harness.osts.CountObjects(), 1u);
  ASSERT_THAT(client.Close(file, 0), IsOk());
  ASSERT_THAT(client.Unlink(kRootFid, "f"), IsOk());
  EXPECT_TRUE(harness.RunUntil([&] { return harness.osts.CountObjects() == 0; }));
}

}  // namespace
}  // namespace nacre::mds
