// Everything that is not opened when it is made: directories, fifos, sockets, devices, symlinks.
#include <sys/sysmacros.h>

#include "tests/server/metadata/harness.h"

namespace nacre::mds {
namespace {

class MknodTest : public testing::Test {
 protected:
  Harness harness;
  TestClient client{harness};
};

TEST_F(MknodTest, KeepsTypeModeAndDevice) {
  auto fifo = client.Mknod(kRootFid, "fifo", S_IFIFO | 0640, makedev(1, 3));
  ASSERT_THAT(fifo, IsOk());
  EXPECT_EQ(fifo.entry().attr().mode(), S_IFIFO | 0640u);
  EXPECT_EQ(fifo.entry().attr().rdev(), 0u);
  auto device = client.Mknod(kRootFid, "null", S_IFCHR | 0666, makedev(1, 3));
  ASSERT_THAT(device, IsOk());
  EXPECT_EQ(device.entry().attr().rdev(), makedev(1, 3));
  EXPECT_THAT(client.Mknod(kRootFid, "sock", S_IFSOCK | 0600), IsOk());
  EXPECT_THAT(client.Mknod(kRootFid, "none", 0644), Fails(EINVAL));
  EXPECT_THAT(client.Mknod(kRootFid, "fifo", S_IFIFO | 0640), Fails(EEXIST));
}

TEST_F(MknodTest, DevicesAreForRoot) {
  const Fid dir = FidOf(client.Mkdir(kRootFid, "d", 0777));
  client.As(1000, 1000);
  EXPECT_THAT(client.Mknod(dir, "null", S_IFCHR | 0666, makedev(1, 3)), Fails(EPERM));
  EXPECT_THAT(client.Mknod(dir, "disk", S_IFBLK | 0666, makedev(8, 0)), Fails(EPERM));
  EXPECT_THAT(client.Mknod(dir, "fifo", S_IFIFO | 0666), IsOk());
}

TEST_F(MknodTest, ASymlinkKeepsItsTarget) {
  auto link = client.Symlink(kRootFid, "l", "some/where");
  ASSERT_THAT(link, IsOk());
  EXPECT_EQ(link.entry().attr().mode(), S_IFLNK | 0777u);
  EXPECT_EQ(link.entry().attr().size(), 10u);
  EXPECT_EQ(client.Readlink(FidOf(link)).readlink().target(), "some/where");
  EXPECT_THAT(client.Symlink(kRootFid, "empty", ""), Fails(ENOENT));
  EXPECT_THAT(client.Symlink(kRootFid, "long", std::string(4095, 'x')), IsOk());
  EXPECT_THAT(client.Symlink(kRootFid, "longer", std::string(4096, 'x')), Fails(ENAMETOOLONG));
  EXPECT_THAT(client.Readlink(kRootFid), Fails(EINVAL));
  EXPECT_THAT(client.Readlink({7, 7, 7}), Fails(ENOENT));
}

TEST_F(MknodTest, ASetgidDirectoryHandsItsGroupDown) {
  const Fid dir = FidOf(client.Mkdir(kRootFid, "d", 0777));
  ASSERT_THAT(client.Chown(dir, -1, 50), IsOk());
  ASSERT_THAT(client.Chmod(dir, 02777), IsOk());
  client.As(1000, 1000);
  auto file = client.Mknod(dir, "f", S_IFREG | 0644);
  EXPECT_EQ(file.entry().attr().gid(), 50u);
  EXPECT_EQ(file.entry().attr().uid(), 1000u);
  auto sub = client.Mkdir(dir, "sub");
  EXPECT_EQ(sub.entry().attr().gid(), 50u);
  EXPECT_EQ(sub.entry().attr().mode() & 07777, 02755u);
}

TEST_F(MknodTest, NothingIsMadeInARemovedDirectory) {
  const Fid dir = FidOf(client.Mkdir(kRootFid, "d"));
  ASSERT_THAT(client.Open(dir), IsOk());
  ASSERT_THAT(client.Rmdir(kRootFid, "d"), IsOk());
  EXPECT_THAT(client.Mkdir(dir, "sub"), Fails(ENOENT));
  EXPECT_THAT(client.Create(dir, "file"), Fails(ENOENT));
}

}  // namespace
}  // namespace nacre::mds
