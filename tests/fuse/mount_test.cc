#include "fuse/mount.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>

#include "tests/fuse/mounted.h"

namespace nacre::fuse {
namespace {

using MountTest = MountedTest;

TEST_F(MountTest, ShowsItselfAsNacre) {
  StatusOr<MountEntry> entry = FindMount(mountpoint_);
  ASSERT_TRUE(entry.ok()) << entry.status();
  EXPECT_EQ(entry->type, "fuse.nacre");
  EXPECT_EQ(entry->source, "nacre");
  std::ifstream file("/sys/class/bdi/" + entry->device + "/read_ahead_kb");
  int kilobytes = 0;
  file >> kilobytes;
  EXPECT_EQ(kilobytes, ::geteuid() == 0 ? 4096 : 128);
}

TEST_F(MountTest, EndsWhenSomebodyUnmountsIt) {
  EXPECT_FALSE(mount_->ended().IsSet());
  Status status = UnmountPath(mountpoint_, false);
  ASSERT_TRUE(status.ok()) << status;
  for (int i = 0; i < 5000 && !mount_->ended().IsSet(); ++i) ::usleep(1000);
  EXPECT_TRUE(mount_->ended().IsSet());
  EXPECT_EQ(UnmountPath(mountpoint_, false).code(), absl::StatusCode::kNotFound);
}

TEST_F(MountTest, RefusesASecondMountOnTop) {
  MountOptions options;
  options.mountpoint = mountpoint_;
  auto second = Mount::Start(filesystem_, context_.get_executor(), options);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(ToErrno(second.status()), EBUSY);
}

TEST_F(MountTest, RefusesAMountpointThatIsNoDirectory) {
  MountOptions options;
  options.mountpoint = "/etc/hostname";
  EXPECT_EQ(ToErrno(Mount::Start(filesystem_, context_.get_executor(), options).status()), ENOTDIR);
  options.mountpoint = "/nowhere/at/all";
  EXPECT_EQ(ToErrno(Mount::Start(filesystem_, context_.get_executor(), options).status()), ENOENT);
}

TEST_F(MountTest, UnmountsAlthoughFilesAreOpen) {
  WriteFile("file", "x");
  int file = ::open(Path("file").c_str(), O_RDONLY);
  StopMount();
  char byte;
  EXPECT_EQ(::pread(file, &byte, 1, 0), -1);
  EXPECT_TRUE(errno == ENOTCONN || errno == ECONNABORTED) << std::strerror(errno);
  ::close(file);
}

TEST_F(MountTest, WaitsForRequestsInProgress) {
  WriteFile("file", "x");
  filesystem_.HoldReads(true);
  std::thread reader([this] {
    int file = ::open(Path("file").c_str(), O_RDONLY | O_DIRECT);
    char buffer[4096];
    EXPECT_EQ(::read(file, buffer, sizeof buffer), -1);
    ::close(file);
  });
  while (filesystem_.reads() == 0) ::usleep(1000);
  Status status = mount_->Unmount(200ms);
  EXPECT_EQ(ToErrno(status), EBUSY);
  reader.join();
  filesystem_.HoldReads(false);
  StopMount();
}

// As just after kill -9: the kernel still answers from what it was told, for as long as it was told.
TEST_F(MountTest, TakesOffADeadMountThatTheKernelStillRemembers) {
  filesystem_.SetValid(1h);
  WriteFile("file", "x");
  int file = ::open(Path("file").c_str(), O_RDONLY);
  struct stat found;
  ASSERT_EQ(::stat(mountpoint_.c_str(), &found), 0);
  EXPECT_EQ(::umount2(mountpoint_.c_str(), MNT_FORCE), -1) << "busy: only the connection is cut";
  for (int i = 0; i < 5000 && !mount_->ended().IsSet(); ++i) ::usleep(1000);
  ASSERT_TRUE(mount_->ended().IsSet());
  StopMount();
  ASSERT_EQ(::stat(mountpoint_.c_str(), &found), 0) << "the point of this test is gone";
  StartMount({});
  EXPECT_EQ(ReadFile("file"), "x");
  ::close(file);
}

// As after kill -9 of a daemon: the mount stays and answers ENOTCONN.
TEST_F(MountTest, TakesOffWhatADeadDaemonLeft) {
  StopMount();
  pid_t child = ::fork();
  if (child == 0) {
    int device = ::open("/dev/fuse", O_RDWR);
    std::string options = absl::StrFormat("fd=%d,rootmode=40000,user_id=0,group_id=0", device);
    ::_exit(::mount("dead", mountpoint_.c_str(), "fuse.nacre", 0, options.c_str()) == 0 ? 0 : errno);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  if (WEXITSTATUS(status) == EPERM) GTEST_SKIP() << "NOT TESTED: only root mounts without fusermount3";
  ASSERT_EQ(status, 0);
  struct stat found;
  ASSERT_EQ(::stat(mountpoint_.c_str(), &found), -1);
  ASSERT_EQ(errno, ENOTCONN);
  StartMount({});
  WriteFile("file", "x");
  EXPECT_EQ(ReadFile("file"), "x");
}

}  // namespace
}  // namespace nacre::fuse
