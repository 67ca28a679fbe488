#include "daemon/mount_users.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/daemon/program.h"

namespace nacre {
namespace {

TEST(MountUsers, AreThoseWithFilesOpenThere) {
  TemporaryDirectory directory, other;
  EXPECT_TRUE(FindMountUsers(directory.path()).empty());
  const int file = ::open((directory / "file").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_GE(file, 0);
  std::vector<MountUser> users = FindMountUsers(directory.path());
  ASSERT_EQ(users.size(), 1u);
  EXPECT_EQ(users[0].pid, ::getpid());
  EXPECT_EQ(Describe(users), std::to_string(::getpid()) + " (daemon_test)");
  EXPECT_TRUE(
      FindMountUsers(directory.path().substr(0, directory.path().size() - 1)).empty());  // a part of the name
  EXPECT_TRUE(FindMountUsers(other.path()).empty());
  ::close(file);
}

TEST(MountUsers, OnlyTheFirstAreNamed) {
  std::vector<MountUser> users;
  for (int i = 1; i <= 7; ++i) users.push_back({i, "a"});
  EXPECT_EQ(Describe(users), "1 (a), 2 (a), 3 (a), 4 (a), 5 (a) and 2 more");
}

}  // namespace
}  // namespace nacre
