#include "tests/fuse/mounted.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace nacre::fuse {

void MountedTest::SetUp() {
  if (::access("/dev/fuse", R_OK | W_OK) != 0)
    GTEST_SKIP() << "NOT TESTED: /dev/fuse: " << std::strerror(errno);
  char name[] = "/tmp/nacre-fuse-test.XXXXXX";
  ASSERT_NE(::mkdtemp(name), nullptr);
  mountpoint_ = name;
  runner_ = std::thread([this] { context_.run(); });
  watchdog_ = std::thread([this] { Watch(); });
  MountOptions options;
  options.threads = 2;
  StartMount(options);
}

void MountedTest::StartMount(MountOptions options) {
  options.mountpoint = mountpoint_;
  StatusOr<std::unique_ptr<Mount>> mount = Mount::Start(filesystem_, context_.get_executor(), options);
  ASSERT_TRUE(mount.ok()) << mount.status();
  mount_ = *std::move(mount);
}

void MountedTest::StopMount() {
  if (mount_ == nullptr) return;
  Status status = mount_->Unmount(10s);
  EXPECT_TRUE(status.ok()) << status;
  mount_.reset();
}

void MountedTest::TearDown() {
  if (mountpoint_.empty()) return;
  StopMount();
  {
    std::lock_guard lock(mutex_);
    over_ = true;
  }
  over_changed_.notify_all();
  watchdog_.join();
  work_.reset();
  runner_.join();
  ::umount2(mountpoint_.c_str(), MNT_DETACH);
  EXPECT_EQ(::rmdir(mountpoint_.c_str()), 0) << std::strerror(errno);
}

void MountedTest::Watch() {
  std::unique_lock lock(mutex_);
  if (over_changed_.wait_for(lock, std::chrono::minutes(1), [this] { return over_; })) return;
  ADD_FAILURE() << "the mount did not end within a minute: cutting it off";
  ::umount2(mountpoint_.c_str(), MNT_FORCE);
}

void MountedTest::WriteFile(const std::string& name, std::string_view data) {
  std::ofstream file(Path(name), std::ios::binary | std::ios::trunc);
  file.write(data.data(), static_cast<std::streamsize>(data.size()));
  file.close();
  ASSERT_TRUE(file.good()) << name;
}

std::string MountedTest::ReadFile(const std::string& name) {
  std::ifstream file(Path(name), std::ios::binary);
  EXPECT_TRUE(file.is_open()) << name << ": " << std::strerror(errno);
  std::stringstream out;
  out << file.rdbuf();
  return out.str();
}

}  // namespace nacre::fuse
