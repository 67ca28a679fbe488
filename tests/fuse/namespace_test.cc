#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/fs.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <set>

#include "fuse/nodes.h"
#include "tests/fuse/mounted.h"

namespace nacre::fuse {
namespace {

using NamespaceTest = MountedTest;

TEST_F(NamespaceTest, MakesEveryKindAndFindsItAgain) {
  ASSERT_EQ(::mkdir(Path("d").c_str(), 0750), 0);
  ASSERT_EQ(::mkfifo(Path("d/fifo").c_str(), 0600), 0);
  ASSERT_EQ(::mknod(Path("d/device").c_str(), S_IFCHR | 0666, makedev(1, 3)), 0);
  ASSERT_EQ(::symlink("fifo", Path("d/symlink").c_str()), 0);
  WriteFile("d/file", "x");
  ASSERT_EQ(::link(Path("d/file").c_str(), Path("hard").c_str()), 0);

  struct stat found;
  ASSERT_EQ(::stat(Path("d").c_str(), &found), 0);
  EXPECT_EQ(found.st_mode, S_IFDIR | 0750u);
  ASSERT_EQ(::lstat(Path("d/fifo").c_str(), &found), 0);
  EXPECT_TRUE(S_ISFIFO(found.st_mode));
  ASSERT_EQ(::lstat(Path("d/device").c_str(), &found), 0);
  EXPECT_TRUE(S_ISCHR(found.st_mode));
  EXPECT_EQ(found.st_rdev, makedev(1, 3));
  char target[16];
  ASSERT_EQ(::readlink(Path("d/symlink").c_str(), target, sizeof target), 4);
  EXPECT_EQ(std::string_view(target, 4), "fifo");
  ASSERT_EQ(::stat(Path("hard").c_str(), &found), 0);
  EXPECT_EQ(found.st_nlink, 2u);
  EXPECT_EQ(found.st_ino, NodeTable::Ino(filesystem_.FidOf("d/file")));
}

TEST_F(NamespaceTest, ADeviceNodeWorks) {
  ASSERT_EQ(::mknod(Path("null").c_str(), S_IFCHR | 0666, makedev(1, 3)), 0);
  int file = ::open(Path("null").c_str(), O_RDWR);
  ASSERT_GE(file, 0) << std::strerror(errno);
  EXPECT_EQ(::write(file, "x", 1), 1);
  char byte;
  EXPECT_EQ(::read(file, &byte, 1), 0);
  ::close(file);
}

TEST_F(NamespaceTest, RemovesAndRefuses) {
  ASSERT_EQ(::mkdir(Path("d").c_str(), 0755), 0);
  WriteFile("d/file", "x");
  EXPECT_EQ(::rmdir(Path("d").c_str()), -1);
  EXPECT_EQ(errno, ENOTEMPTY);
  EXPECT_EQ(::unlink(Path("d/none").c_str()), -1);
  EXPECT_EQ(errno, ENOENT);
  EXPECT_EQ(::unlink(Path("d/file").c_str()), 0);
  EXPECT_EQ(::rmdir(Path("d").c_str()), 0);
  EXPECT_EQ(::access(Path("d").c_str(), F_OK), -1);
}

TEST_F(NamespaceTest, RenamesWithFlags) {
  WriteFile("a", "1");
  WriteFile("b", "2");
  EXPECT_EQ(::renameat2(AT_FDCWD, Path("a").c_str(), AT_FDCWD, Path("b").c_str(), RENAME_NOREPLACE), -1);
  EXPECT_EQ(errno, EEXIST);
  ASSERT_EQ(::renameat2(AT_FDCWD, Path("a").c_str(), AT_FDCWD, Path("b").c_str(), RENAME_EXCHANGE), 0);
  EXPECT_EQ(ReadFile("a"), "2");
  EXPECT_EQ(ReadFile("b"), "1");
  ASSERT_EQ(::rename(Path("a").c_str(), Path("b").c_str()), 0);
  EXPECT_EQ(ReadFile("b"), "2");
  EXPECT_EQ(filesystem_.Find("a"), nullptr);
}

TEST_F(NamespaceTest, ListsManyEntriesOnceEachWithTheirTypes) {
  ASSERT_EQ(::mkdir(Path("d").c_str(), 0755), 0);
  std::set<std::string> expected{".", ".."};
  for (int i = 0; i < 500; ++i) {
    std::string name = absl::StrFormat("%03d-%s", i, std::string(static_cast<size_t>(i) % 250, 'n'));
    WriteFile("d/" + name, "");
    expected.insert(name);
  }
  for (int round = 0; round < 2; ++round) {  // the second after rewinding
    std::set<std::string> seen;
    DIR* directory = ::opendir(Path("d").c_str());
    ASSERT_NE(directory, nullptr);
    ::rewinddir(directory);
    while (dirent* entry = ::readdir(directory)) {
      std::string name = entry->d_name;
      EXPECT_TRUE(seen.insert(name).second) << name << " came twice";
      EXPECT_EQ(entry->d_type, name[0] == '.' ? DT_DIR : DT_REG);
      if (name == ".") continue;
      EXPECT_EQ(entry->d_ino, name == ".." ? 1u : NodeTable::Ino(filesystem_.FidOf("d/" + name)));
    }
    ::closedir(directory);
    EXPECT_EQ(seen, expected);
  }
}

TEST_F(NamespaceTest, SeekdirGoesBackToAnEntry) {
  for (const char* name : {"a", "b", "c", "d"}) WriteFile(name, "");
  DIR* directory = ::opendir(mountpoint_.c_str());
  ASSERT_NE(directory, nullptr);
  std::vector<std::pair<long, std::string>> places;
  while (true) {
    long place = ::telldir(directory);
    dirent* entry = ::readdir(directory);
    if (entry == nullptr) break;
    places.emplace_back(place, entry->d_name);
  }
  ASSERT_EQ(places.size(), 6u);
  std::reverse(places.begin(), places.end());
  for (const auto& [place, name] : places) {
    ::seekdir(directory, place);
    EXPECT_EQ(std::string(::readdir(directory)->d_name), name);
  }
  ::closedir(directory);
}

TEST_F(NamespaceTest, AttributesGoBothWays) {
  WriteFile("file", "12345");
  ASSERT_EQ(::chmod(Path("file").c_str(), 04711), 0);
  ASSERT_EQ(::chown(Path("file").c_str(), 12, 34), 0);
  ASSERT_EQ(::chmod(Path("file").c_str(), 04711), 0);
  timespec times[2] = {{-5, 7}, {1ll << 33, 999999999}};
  ASSERT_EQ(::utimensat(AT_FDCWD, Path("file").c_str(), times, 0), 0);
  timespec omit[2] = {{0, UTIME_OMIT}, {0, UTIME_OMIT}};
  ASSERT_EQ(::utimensat(AT_FDCWD, Path("file").c_str(), omit, 0), 0);
  ASSERT_EQ(::truncate(Path("file").c_str(), 3), 0);
  struct stat found;
  ASSERT_EQ(::stat(Path("file").c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 07777, 04711u);
  EXPECT_EQ(found.st_uid, 12u);
  EXPECT_EQ(found.st_gid, 34u);
  EXPECT_EQ(found.st_size, 3);
  EXPECT_EQ(found.st_atim.tv_sec, -5);
  EXPECT_EQ(found.st_atim.tv_nsec, 7);
}

TEST_F(NamespaceTest, TheCallersIdsAndGroupsArrive) {
  ASSERT_EQ(::chmod(mountpoint_.c_str(), 0777), 0);
  pid_t child = ::fork();
  if (child == 0) {
    gid_t groups[] = {77, 88, 99};
    if (::setgroups(3, groups) != 0 || ::setgid(66) != 0 || ::setuid(55) != 0) ::_exit(2);
    ::_exit(::mkdir(Path("d").c_str(), 0755) == 0 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  client::Caller caller = filesystem_.last_caller();
  EXPECT_EQ(caller.uid, 55u);
  EXPECT_EQ(caller.gid, 66u);
  EXPECT_EQ(caller.groups, (std::vector<uint32_t>{77, 88, 99}));
}

TEST_F(NamespaceTest, TheKernelChecksPermissions) {
  ASSERT_EQ(::mkdir(Path("closed").c_str(), 0700), 0);
  pid_t child = ::fork();
  if (child == 0) {
    if (::setgid(66) != 0 || ::setuid(55) != 0) ::_exit(2);
    bool refused = ::open(Path("closed").c_str(), O_RDONLY | O_DIRECTORY) < 0 && errno == EACCES;
    ::_exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(NamespaceTest, NamesOf255Bytes) {
  std::string longest(255, 'x');
  WriteFile(longest, "x");
  EXPECT_NE(filesystem_.Find(longest), nullptr);
  EXPECT_EQ(::mkdir(Path(std::string(256, 'x')).c_str(), 0755), -1);
  EXPECT_EQ(errno, ENAMETOOLONG);
}

TEST_F(NamespaceTest, AChangeElsewhereIsSeenAfterInvalidation) {
  filesystem_.SetValid(1h);
  EXPECT_NE(::access(Path("file").c_str(), F_OK), 0);  // a negative entry, kept for an hour
  WriteFile("other", "x");
  struct stat found;
  ASSERT_EQ(::stat(Path("other").c_str(), &found), 0);
  filesystem_.Overwrite("other", "longer");
  ASSERT_EQ(::stat(Path("other").c_str(), &found), 0);
  EXPECT_EQ(found.st_size, 1);  // the kernel was told that it may
  filesystem_.Forget(filesystem_.FidOf("other"));
  ASSERT_EQ(::stat(Path("other").c_str(), &found), 0);
  EXPECT_EQ(found.st_size, 6);
}

TEST_F(NamespaceTest, AnswersThatAChangeHasOvertakenAreNotKept) {
  filesystem_.SetValid(1h);
  filesystem_.SetOvertaken(true);
  WriteFile("file", "x");
  struct stat found;
  ASSERT_EQ(::stat(Path("file").c_str(), &found), 0);
  filesystem_.Overwrite("file", "longer");
  ASSERT_EQ(::stat(Path("file").c_str(), &found), 0);
  EXPECT_EQ(found.st_size, 6);
}

}  // namespace
}  // namespace nacre::fuse
