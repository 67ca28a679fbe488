#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "common/random.h"
#include "tests/fuse/mounted.h"

namespace nacre::fuse {
namespace {

std::string Noise(size_t size) {
  SeededRandom random(42);
  std::string out(size, 0);
  for (char& c : out) c = static_cast<char>(random.Next());
  return out;
}

using IoTest = MountedTest;

TEST_F(IoTest, LargeFilesComeBackAsTheyWere) {
  std::string data = Noise((5 << 20) + 123);
  WriteFile("file", data);
  EXPECT_EQ(filesystem_.Find("file")->data, data);
  EXPECT_EQ(ReadFile("file"), data);
}

TEST_F(IoTest, ReadsArriveInLargePieces) {
  filesystem_.SetMayCache(false);
  WriteFile("file", Noise(4 << 20));
  uint64_t before = filesystem_.reads();
  int file = ::open(Path("file").c_str(), O_RDONLY);
  std::string buffer(4 << 20, 0);
  ASSERT_EQ(::read(file, buffer.data(), buffer.size()), 4 << 20);
  ::close(file);
  EXPECT_LE(filesystem_.reads() - before, 8u);
}

TEST_F(IoTest, OpenFilesAreGivenBack) {
  WriteFile("file", "x");
  ReadFile("file");
  // The kernel sends releases some time after the close, and none behind an unmount.
  auto deadline = std::chrono::steady_clock::now() + 10s;
  while (filesystem_.open_handles() != 0 && std::chrono::steady_clock::now() < deadline) ::usleep(1000);
  EXPECT_EQ(filesystem_.open_handles(), 0u);
}

TEST_F(IoTest, CachedPagesAreNotAskedForAgain) {
  WriteFile("file", "abc");
  EXPECT_EQ(ReadFile("file"), "abc");
  uint64_t before = filesystem_.reads();
  EXPECT_EQ(ReadFile("file"), "abc");
  EXPECT_EQ(filesystem_.reads(), before);
}

class StalePages : public MountedTest {
 protected:
  // Checks that each read that begins after another client has overwritten the file sees the new content.
  template <typename Read>
  void NeverStale(Read read) {
    for (int i = 0; i < 300; ++i) {
      std::string data = absl::StrFormat("%03d", i) + std::string(4096 + i % 7 * 1000, 'x');
      filesystem_.Overwrite("file", data);
      ASSERT_EQ(read(), data.substr(0, 3));
      ASSERT_EQ(read(), data.substr(0, 3));  // from a page, where there are some
    }
  }
  static std::string ReadThree(int file) {
    char buffer[3] = {};
    EXPECT_EQ(::pread(file, buffer, sizeof buffer, 0), 3);
    return {buffer, 3};
  }
  // The lease is gone: no promise is made any more, and the kernel has been told.
  void LoseLease() {
    filesystem_.SetValid(0s);
    filesystem_.SetMayCache(false);
    filesystem_.Forget(filesystem_.FidOf("file"));
  }
};

TEST_F(StalePages, NotThroughAFileOpenedUnderTheLease) {
  WriteFile("file", "abc");
  int early = ::open(Path("file").c_str(), O_RDONLY);
  ASSERT_EQ(ReadThree(early), "abc");
  LoseLease();
  NeverStale([&] { return ReadThree(early); });
  ::close(early);
}

TEST_F(StalePages, NotThroughAFileOpenedWithoutIt) {
  WriteFile("file", "abc");
  LoseLease();
  int late = ::open(Path("file").c_str(), O_RDONLY);
  NeverStale([&] { return ReadThree(late); });
  ::close(late);
}

// On kernels before 6.6, which map no file that is opened past the page cache.
TEST_F(StalePages, NotThroughAMappingOfAFileThatIsOnlyRead) {
  StopMount();
  MountOptions options;
  options.direct_maps = false;
  StartMount(options);
  WriteFile("file", std::string(8192, 'a'));
  LoseLease();
  int file = ::open(Path("file").c_str(), O_RDONLY);
  void* mapped = ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, file, 0);
  ASSERT_NE(mapped, MAP_FAILED) << std::strerror(errno);
  NeverStale([&] {
    std::atomic_signal_fence(std::memory_order_seq_cst);
    return std::string(static_cast<const char*>(mapped), 3);
  });
  NeverStale([&] { return ReadThree(file); });
  ::munmap(mapped, 4096);
  ::close(file);
}

TEST_F(StalePages, NotThroughAMapping) {
  WriteFile("file", std::string(8192, 'a'));
  LoseLease();
  filesystem_.Overwrite("file", std::string(8192, 'b'));
  int file = ::open(Path("file").c_str(), O_RDONLY);
  void* mapped = ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, file, 0);
  if (mapped == MAP_FAILED && errno == ENODEV) GTEST_SKIP() << "NOT TESTED: a kernel before 6.6";
  ASSERT_NE(mapped, MAP_FAILED) << std::strerror(errno);
  NeverStale([&] {
    std::atomic_signal_fence(std::memory_order_seq_cst);  // the compiler does not know who else writes there
    return std::string(static_cast<const char*>(mapped), 3);
  });
  ::munmap(mapped, 4096);
  ::close(file);
}

// A page that is read while a write past the cache is under way.
TEST_F(StalePages, NotBehindADirectWrite) {
  WriteFile("file", std::string(4096, 'a'));
  int reader = ::open(Path("file").c_str(), O_RDONLY);
  int writer = ::open(Path("file").c_str(), O_WRONLY | O_DIRECT);
  ASSERT_GE(writer, 0) << std::strerror(errno);
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop) ReadThree(reader);
  });
  auto* buffer = static_cast<char*>(std::aligned_alloc(4096, 4096));
  for (int i = 0; i < 500; ++i) {
    std::memset(buffer, 'a' + i % 26, 4096);
    ASSERT_EQ(::pwrite(writer, buffer, 4096, 0), 4096);
    ASSERT_EQ(ReadThree(reader), std::string(3, static_cast<char>('a' + i % 26)));
  }
  stop = true;
  busy.join();
  std::free(buffer);
  ::close(reader);
  ::close(writer);
}

// The kernel writes a mapping back through whichever handle it likes.
TEST_F(IoTest, AMappingOfAFileOpenForAppendIsWrittenInPlace) {
  WriteFile("file", std::string(8192, 'a'));
  int file = ::open(Path("file").c_str(), O_RDWR | O_APPEND);
  auto* mapped = static_cast<char*>(::mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
  ASSERT_NE(mapped, MAP_FAILED) << std::strerror(errno);
  mapped[10] = 'b';
  ASSERT_EQ(::msync(mapped, 8192, MS_SYNC), 0);
  ::munmap(mapped, 8192);
  ::close(file);
  std::string wanted(8192, 'a');
  wanted[10] = 'b';
  EXPECT_EQ(filesystem_.Find("file")->data, wanted);
}

TEST_F(IoTest, DirectIo) {
  int file = ::open(Path("file").c_str(), O_RDWR | O_CREAT | O_DIRECT, 0644);
  ASSERT_GE(file, 0) << std::strerror(errno);
  auto* buffer = static_cast<char*>(std::aligned_alloc(4096, 1 << 20));
  std::string data = Noise(1 << 20);
  std::memcpy(buffer, data.data(), data.size());
  ASSERT_EQ(::pwrite(file, buffer, 1 << 20, 0), 1 << 20);
  std::memset(buffer, 0, 1 << 20);
  ASSERT_EQ(::pread(file, buffer, 1 << 20, 0), 1 << 20);
  EXPECT_EQ(std::string_view(buffer, 1 << 20), data);
  std::free(buffer);
  ::close(file);
}

TEST_F(IoTest, AppendGoesToTheEnd) {
  WriteFile("file", "one");
  int file = ::open(Path("file").c_str(), O_WRONLY | O_APPEND);
  ASSERT_EQ(::write(file, "two", 3), 3);
  ASSERT_EQ(::pwrite(file, "three", 5, 0), 5);  // Linux appends
  ::close(file);
  EXPECT_EQ(ReadFile("file"), "onetwothree");
}

TEST_F(IoTest, SharedAndPrivateMappings) {
  WriteFile("file", std::string(8192, 'a'));
  int file = ::open(Path("file").c_str(), O_RDWR);
  auto* shared = static_cast<char*>(::mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
  ASSERT_NE(shared, MAP_FAILED) << std::strerror(errno);
  auto* own = static_cast<char*>(::mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0));
  ASSERT_NE(own, MAP_FAILED) << std::strerror(errno);
  shared[4096] = 'S';
  own[0] = 'P';
  ASSERT_EQ(::msync(shared, 8192, MS_SYNC), 0);
  EXPECT_EQ(filesystem_.Find("file")->data[4096], 'S');
  EXPECT_EQ(filesystem_.Find("file")->data[0], 'a');
  EXPECT_EQ(shared[0], 'a');
  ::munmap(shared, 8192);
  ::munmap(own, 8192);
  ::close(file);
}

TEST_F(IoTest, SharedMappingsWithoutTheLease) {
  filesystem_.SetMayCache(false);
  WriteFile("file", std::string(4096, 'a'));
  int file = ::open(Path("file").c_str(), O_RDWR);
  auto* shared = static_cast<char*>(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
  if (shared == MAP_FAILED && errno == ENODEV) GTEST_SKIP() << "NOT TESTED: a kernel before 6.6";
  ASSERT_NE(shared, MAP_FAILED) << std::strerror(errno);
  shared[1] = 'S';
  ASSERT_EQ(::msync(shared, 4096, MS_SYNC), 0);
  EXPECT_EQ(ReadFile("file").substr(0, 3), "aSa");
  ::munmap(shared, 4096);
  ::close(file);
}

TEST_F(IoTest, AWriteAsksForNoAttribute) {
  WriteFile("file", "x");
  uint64_t before = filesystem_.xattr_requests();
  int file = ::open(Path("file").c_str(), O_WRONLY);
  for (int i = 0; i < 10; ++i) ASSERT_EQ(::write(file, "x", 1), 1);
  ::close(file);
  EXPECT_LE(filesystem_.xattr_requests() - before, 1u);
}

TEST_F(IoTest, AProgramRunsFromTheMount) {
  ASSERT_EQ(std::system(absl::StrFormat("cp /bin/true %s && %s", Path("true"), Path("true")).c_str()), 0);
}

TEST_F(IoTest, HolesAndSpace) {
  WriteFile("file", std::string(100, 'x'));
  int file = ::open(Path("file").c_str(), O_RDWR);
  ASSERT_EQ(::fallocate(file, 0, 0, 300), 0);
  struct stat found;
  ASSERT_EQ(::fstat(file, &found), 0);
  EXPECT_EQ(found.st_size, 300);
  ASSERT_EQ(::fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 10, 20), 0);
  EXPECT_EQ(::lseek(file, 0, SEEK_HOLE), 10);
  EXPECT_EQ(::lseek(file, 10, SEEK_DATA), 30);
  EXPECT_EQ(::fallocate(file, FALLOC_FL_COLLAPSE_RANGE, 0, 100), -1);
  EXPECT_EQ(errno, EOPNOTSUPP);
  ::close(file);
  struct statvfs space;
  ASSERT_EQ(::statvfs(mountpoint_.c_str(), &space), 0);
  EXPECT_EQ(space.f_blocks * space.f_frsize, 1u << 30);
  EXPECT_EQ(space.f_namemax, 255u);
}

TEST_F(IoTest, CopyFileRange) {
  WriteFile("from", "0123456789");
  int from = ::open(Path("from").c_str(), O_RDONLY),
      to = ::open(Path("to").c_str(), O_WRONLY | O_CREAT, 0644);
  loff_t at = 2;
  ASSERT_EQ(::copy_file_range(from, &at, to, nullptr, 5, 0), 5);
  ::close(from);
  ::close(to);
  EXPECT_EQ(ReadFile("to"), "23456");
}

TEST_F(IoTest, ExtendedAttributes) {
  WriteFile("file", "x");
  std::string path = Path("file");
  ASSERT_EQ(::setxattr(path.c_str(), "user.a", "value", 5, 0), 0);
  EXPECT_EQ(::setxattr(path.c_str(), "user.a", "value", 5, XATTR_CREATE), -1);
  EXPECT_EQ(errno, EEXIST);
  char buffer[64];
  EXPECT_EQ(::getxattr(path.c_str(), "user.a", nullptr, 0), 5);
  EXPECT_EQ(::getxattr(path.c_str(), "user.a", buffer, 3), -1);
  EXPECT_EQ(errno, ERANGE);
  ASSERT_EQ(::getxattr(path.c_str(), "user.a", buffer, sizeof buffer), 5);
  EXPECT_EQ(std::string_view(buffer, 5), "value");
  ASSERT_EQ(::listxattr(path.c_str(), buffer, sizeof buffer), 7);
  EXPECT_EQ(std::string_view(buffer, 7), std::string_view("user.a\0", 7));
  ASSERT_EQ(::removexattr(path.c_str(), "user.a"), 0);
  EXPECT_EQ(::getxattr(path.c_str(), "user.a", buffer, sizeof buffer), -1);
  EXPECT_EQ(errno, ENODATA);
}

TEST_F(IoTest, AnUnlinkedOpenFileLivesOn) {
  WriteFile("file", "still here");
  int file = ::open(Path("file").c_str(), O_RDWR);
  ASSERT_EQ(::unlink(Path("file").c_str()), 0);
  char buffer[32];
  EXPECT_EQ(::pread(file, buffer, sizeof buffer, 0), 10);
  struct stat found;
  ASSERT_EQ(::fstat(file, &found), 0);
  EXPECT_EQ(found.st_nlink, 0u);
  ::close(file);
}

}  // namespace
}  // namespace nacre::fuse
