#include "transport/shared_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>

#include "tests/transport/large_pages.h"

namespace nacre {
namespace {

constexpr size_t kSize = 64 << 10;

TEST(SharedMemoryTest, OthersSeeWhatItsMakerWrites) {
  auto memory = SharedMemory::Create("nacre-test", kSize).value();
  ASSERT_TRUE(memory->shareable().ok()) << memory->shareable();
  auto view = SharedView::Map(memory->fd(), kSize).value();
  EXPECT_EQ(view->bytes()[kSize - 1], std::byte{0});
  memory->data()[kSize - 1] = std::byte{42};
  EXPECT_EQ(view->bytes()[kSize - 1], std::byte{42});
}

TEST(SharedMemoryTest, NobodyElseCanEverWrite) {
  auto memory = SharedMemory::Create("nacre-test", kSize).value();
  // Even one with the same user who opens it anew.
  const std::string path = "/proc/self/fd/" + std::to_string(memory->fd());
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  EXPECT_EQ(::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
  EXPECT_EQ(::pwrite(fd, "x", 1, 0), -1);
  EXPECT_EQ(::ftruncate(fd, 0), -1);
  void* seen = ::mmap(nullptr, kSize, PROT_READ, MAP_SHARED, fd, 0);
  ASSERT_NE(seen, MAP_FAILED);
  EXPECT_EQ(::mprotect(seen, kSize, PROT_READ | PROT_WRITE), -1);
  ::munmap(seen, kSize);
  ::close(fd);
}

TEST(SharedMemoryTest, TheViewOutlivesTheMaker) {
  auto memory = SharedMemory::Create("nacre-test", kSize).value();
  memory->data()[7] = std::byte{7};
  auto view = SharedView::Map(memory->fd(), kSize).value();
  memory.reset();
  EXPECT_EQ(view->bytes()[7], std::byte{7});
}

TEST(SharedMemoryTest, RefusesWhatCouldKillAReader) {
  EXPECT_FALSE(SharedView::Map(-1, kSize).ok());
  const int unsealed = ::memfd_create("nacre-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(::ftruncate(unsealed, kSize), 0);
  EXPECT_EQ(ToErrno(SharedView::Map(unsealed, kSize).status()), EPROTO);
  ASSERT_EQ(::fcntl(unsealed, F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_TRUE(SharedView::Map(unsealed, kSize).ok());
  for (size_t size : {size_t{0}, kSize - 1, kSize + 1, SIZE_MAX}) {
    EXPECT_EQ(ToErrno(SharedView::Map(unsealed, size).status()), EPROTO) << size;
  }
  ::close(unsealed);
  char name[] = "/tmp/nacre_shared_memory_test.XXXXXX";
  const int file = ::mkstemp(name);
  ASSERT_EQ(::ftruncate(file, kSize), 0);
  EXPECT_EQ(ToErrno(SharedView::Map(file, kSize).status()), EPROTO);
  ::close(file);
  ::unlink(name);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  EXPECT_EQ(ToErrno(SharedView::Map(ends[0], kSize).status()), EPROTO);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST(SharedMemoryTest, LiesWhereLargePagesMayLie) {
  for (size_t size : {kLargePage, 3 * kLargePage + 4096, size_t{64} << 20}) {
    auto memory = SharedMemory::Create("nacre-test", size).value();
    auto view = SharedView::Map(memory->fd(), size).value();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->data()) % kLargePage, 0u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(view->bytes().data()) % kLargePage, 0u);
    memory->data()[size - 1] = std::byte{42};
    EXPECT_EQ(view->bytes()[size - 1], std::byte{42});
  }
}

TEST(SharedMemoryTest, BecomesLargePagesWhateverItHolds) {
  if (const Status can = CanMakeLargePages(); !can.ok()) GTEST_SKIP() << can;
  auto memory = SharedMemory::Create("nacre-test", 3 * kLargePage).value();
  memory->data()[kLargePage + 5000] = std::byte{42};
  Status made = memory->MakeLargePages(kLargePage, 2 * kLargePage);
  for (int i = 0; i < 100 && ToErrno(made) == EAGAIN; ++i)  // the kernel is busy with the page itself
    made = memory->MakeLargePages(kLargePage, 2 * kLargePage);
  ASSERT_TRUE(made.ok()) << made;
  EXPECT_EQ(memory->data()[kLargePage + 5000], std::byte{42});
  EXPECT_EQ(memory->data()[kLargePage], std::byte{0});
  EXPECT_EQ(LargePageBytes(memory->data()), kLargePage);
  auto view = SharedView::Map(memory->fd(), memory->size()).value();
  EXPECT_EQ(view->bytes()[kLargePage + 5000], std::byte{42});
  EXPECT_EQ(LargePageBytes(view->bytes().data()), kLargePage);
  EXPECT_TRUE(memory->MakeLargePages(kLargePage, 2 * kLargePage).ok()) << "it is one already";
  EXPECT_EQ(ToErrno(memory->MakeLargePages(4096, kLargePage)), EINVAL);
  EXPECT_EQ(ToErrno(memory->MakeLargePages(3 * kLargePage, 4 * kLargePage)), EINVAL);
}

TEST(SharedMemoryTest, HasAnIdentity) {
  auto one = SharedMemory::Create("nacre-test", kSize).value();
  auto other = SharedMemory::Create("nacre-test", kSize).value();
  EXPECT_EQ(IdentifySharedMemory(one->fd()).value(), IdentifySharedMemory(one->fd()).value());
  EXPECT_NE(IdentifySharedMemory(one->fd()).value(), IdentifySharedMemory(other->fd()).value());
  EXPECT_FALSE(IdentifySharedMemory(-1).ok());
}

}  // namespace
}  // namespace nacre
