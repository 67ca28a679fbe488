// Device as a MemoryDevice: copies, zeros, checksums, staging, pins; on the fake and on the real driver.
#include "gpu/device.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>

#include "common/crc32c.h"
#include "common/ids.h"
#include "tests/gpu/gpu_fixture.h"
#include "transport/shared_memory.h"

namespace nacre::gpu {
namespace {

class DeviceTest : public GpuTest {
 public:
  // Copies from `host`, cut into pieces, to pieces of `buffer`, and keeps `expected` in step.
  void CopyRandomPieces(const DeviceBuffer& buffer, std::span<const std::byte> host, size_t count,
                        size_t longest, std::vector<std::byte>* expected) {
    std::vector<iovec> to, from;
    size_t at = 0;
    for (auto [offset, length] : RandomExtents(buffer.size(), count, longest)) {
      if (at + length > host.size()) break;
      to.push_back(buffer.Piece(offset, length));
      std::copy_n(host.begin() + at, length, expected->begin() + offset);
      size_t split = Random(length + 1);
      from.push_back({const_cast<std::byte*>(host.data()) + at, split});
      from.push_back({const_cast<std::byte*>(host.data()) + at + split, length - split});
      at += length;
    }
    Status status = Run(device_->CopyIn(to, from));
    EXPECT_TRUE(status.ok()) << status;
  }

  void CheckSums(const DeviceBuffer& buffer, size_t count, size_t longest) {
    std::vector<std::byte> content = Read(buffer);
    std::vector<iovec> pieces;
    std::vector<uint32_t> expected;
    for (auto [offset, length] : RandomExtents(buffer.size(), count, longest)) {
      pieces.push_back(buffer.Piece(offset, length));
      expected.push_back(nacre::Crc32c(std::span(content).subspan(offset, length)));
    }
    auto sums = Run(device_->Crc32c(pieces));
    ASSERT_TRUE(sums.ok()) << sums.status();
    EXPECT_EQ(*sums, expected);
  }
};

TEST_P(DeviceTest, CopiesPiecesOfAnyLength) {
  DeviceBuffer buffer(device_, 3 << 20);
  std::vector<std::byte> expected = RandomBytes(buffer.size());
  Write(buffer, expected);
  std::vector<std::byte> host = RandomBytes(4 << 20);
  for (size_t longest : {size_t{1}, size_t{17}, size_t{4096}, size_t{300'000}})
    CopyRandomPieces(buffer, host, 60, longest, &expected);
  EXPECT_EQ(Read(buffer), expected);
}

TEST_P(DeviceTest, CopiesPiecesFromStaging) {
  DeviceBuffer buffer(device_, 2 << 20);
  std::vector<std::byte> expected = RandomBytes(buffer.size());
  Write(buffer, expected);
  auto staged = Run(device_->Stage(1 << 20));
  ASSERT_TRUE(staged.ok()) << staged.status();
  for (size_t longest : {size_t{5}, size_t{4096}, size_t{20'000}}) {
    std::ranges::copy(RandomBytes(staged->bytes.size()), staged->bytes.begin());
    CopyRandomPieces(buffer, staged->bytes, 50, longest, &expected);
  }
  EXPECT_EQ(Read(buffer), expected);
}

TEST_P(DeviceTest, CopiesOutWhatCameIn) {
  DeviceBuffer buffer(device_, 100'000);
  std::vector<std::byte> content = RandomBytes(buffer.size());
  Write(buffer, content);
  std::vector<std::byte> host(2000);
  Status status = Run(device_->CopyOut({{host.data(), 500}, {host.data() + 500, 1500}},
                                       {buffer.Piece(99'000, 1000), buffer.Piece(7, 1000)}));
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(std::equal(host.begin(), host.begin() + 1000, content.begin() + 99'000));
  EXPECT_TRUE(std::equal(host.begin() + 1000, host.end(), content.begin() + 7));
}

TEST_P(DeviceTest, RefusesUnequalLengths) {
  DeviceBuffer buffer(device_, 4096);
  std::vector<std::byte> host(100);
  Status status = Run(device_->CopyIn({buffer.Piece(0, 101)}, {{host.data(), host.size()}}));
  EXPECT_EQ(ToErrno(status), EINVAL) << status;
}

TEST_P(DeviceTest, ManyTasksAtOnce) {
  DeviceBuffer buffer(device_, 4 << 20);
  std::vector<std::byte> content = RandomBytes(buffer.size());
  constexpr size_t kPart = 64 << 10;
  auto copy = [](Device* device, iovec to, iovec from) -> Task<bool> {
    std::vector<iovec> pieces{to}, sources{from};
    Status status = co_await device->CopyIn(pieces, std::move(sources));
    if (!status.ok()) co_return false;
    StatusOr<std::vector<uint32_t>> sums = co_await device->Crc32c(std::move(pieces));
    std::span<const std::byte> expected(static_cast<const std::byte*>(from.iov_base), from.iov_len);
    co_return sums.ok() && sums->front() == nacre::Crc32c(expected);
  };
  std::vector<Task<bool>> tasks;
  for (size_t at = 0; at < content.size(); at += kPart)
    tasks.push_back(copy(device_.get(), buffer.Piece(at, kPart), iovec{content.data() + at, kPart}));
  EXPECT_THAT(Run(WhenAll(std::move(tasks))), testing::Each(true));
  EXPECT_EQ(Read(buffer), content);
}

// Sums made behind the copy are those of what has arrived, whichever way it goes.
TEST_P(DeviceTest, SumsUpBehindTheCopy) {
  DeviceBuffer buffer(device_, 3 << 20);
  std::vector<std::byte> expected = RandomBytes(buffer.size());
  Write(buffer, expected);
  auto staged = Run(device_->Stage(1 << 20));
  ASSERT_TRUE(staged.ok()) << staged.status();
  std::ranges::copy(RandomBytes(staged->bytes.size()), staged->bytes.begin());
  const std::vector<std::byte> pageable = RandomBytes(1 << 20);
  for (std::span<const std::byte> host : {std::span<const std::byte>(staged->bytes), std::span(pageable)}) {
    for (auto [count, longest] :
         {std::pair<size_t, size_t>{1, 900'000}, {20, 30'000}, {40, 4096}, {200, 100}}) {
      std::vector<iovec> to;
      std::vector<uint32_t> sums;
      size_t at = 0;
      for (auto [offset, length] : RandomExtents(buffer.size(), count, longest)) {
        to.push_back(buffer.Piece(offset, length));
        for (size_t in = 0; in < length; in += kBlockSize)
          sums.push_back(nacre::Crc32c(host.subspan(at + in, std::min<size_t>(kBlockSize, length - in))));
        std::copy_n(host.begin() + static_cast<ptrdiff_t>(at), length, expected.begin() + offset);
        at += length;
      }
      std::vector<iovec> from(1, iovec{const_cast<std::byte*>(host.data()), at}), pieces = to;
      auto made = Run(device_->CopyInAndSum(std::move(to), std::move(from), std::move(pieces)));
      ASSERT_TRUE(made.ok()) << made.status();
      EXPECT_EQ(*made, sums) << count << " pieces of " << longest;
    }
  }
  EXPECT_EQ(Read(buffer), expected);
}

// Many copies at once, of which each has its own sums: those that find no list for theirs get them
// afterwards.
TEST_P(DeviceTest, ManyCopiesAreSummedUpBehind) {
  constexpr size_t kPart = 20'000, kCopies = 200;
  DeviceBuffer buffer(device_, kPart * kCopies);
  std::vector<std::byte> content = RandomBytes(buffer.size());
  auto copy = [](Device* device, iovec to, iovec from) -> Task<bool> {
    std::vector<iovec> target(1, to), source(1, from), pieces = target;
    auto sums = co_await device->CopyInAndSum(std::move(target), std::move(source), std::move(pieces));
    std::vector<uint32_t> expected(CrcCount(0, from.iov_len));
    Crc32cBlocks(0, {static_cast<const std::byte*>(from.iov_base), from.iov_len}, expected.data());
    co_return sums.ok() && *sums == expected;
  };
  std::vector<Task<bool>> tasks;
  for (size_t at = 0; at < content.size(); at += kPart)
    tasks.push_back(copy(device_.get(), buffer.Piece(at, kPart), iovec{content.data() + at, kPart}));
  EXPECT_THAT(Run(WhenAll(std::move(tasks))), testing::Each(true));
  EXPECT_EQ(Read(buffer), content);
}

TEST_P(DeviceTest, ZeroesPiecesOnly) {
  DeviceBuffer buffer(device_, 2 << 20);
  std::vector<std::byte> expected = RandomBytes(buffer.size());
  Write(buffer, expected);
  for (auto [count, longest] :
       {std::pair<size_t, size_t>{1, 1 << 20}, {3, 5000}, {200, 9000}, {5, 400'000}}) {
    std::vector<iovec> pieces;
    for (auto [offset, length] : RandomExtents(buffer.size(), count, longest)) {
      pieces.push_back(buffer.Piece(offset, length));
      std::fill_n(expected.begin() + offset, length, std::byte{0});
    }
    Status status = Run(device_->Zero(pieces));
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE(Read(buffer) == expected) << count << " pieces of " << longest;
  }
}

TEST_P(DeviceTest, SumsPiecesOfAnyLengthAndAlignment) {
  DeviceBuffer buffer(device_, 4 << 20);
  Write(buffer, RandomBytes(buffer.size()));
  for (auto [count, longest] :
       {std::pair<size_t, size_t>{1, 3 << 20}, {300, 16}, {300, 300}, {900, 4096}, {100, 40'000}})
    CheckSums(buffer, count, longest);
}

TEST_P(DeviceTest, SumsBlocks) {
  DeviceBuffer buffer(device_, 4 << 20);
  std::vector<std::byte> content = RandomBytes(buffer.size());
  Write(buffer, content);
  std::vector<iovec> blocks;
  for (size_t at = 0; at < buffer.size(); at += 4096) blocks.push_back(buffer.Piece(at, 4096));
  std::vector<uint32_t> expected(blocks.size());
  Crc32cBlocks(0, content, expected.data());
  auto sums = Run(device_->Crc32c(blocks));
  ASSERT_TRUE(sums.ok()) << sums.status();
  EXPECT_EQ(*sums, expected);
}

TEST_P(DeviceTest, SumsOfNothing) {
  DeviceBuffer buffer(device_, 4096);
  auto none = Run(device_->Crc32c({}));
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_TRUE(none->empty());
  auto empty = Run(device_->Crc32c({buffer.Piece(0, 0)}));
  ASSERT_TRUE(empty.ok()) << empty.status();
  EXPECT_EQ(*empty, std::vector<uint32_t>{0});
  EXPECT_TRUE(Run(device_->Zero({})).ok());
  EXPECT_TRUE(Run(device_->CopyIn({}, {})).ok());
}

// A mapping that may only be read, as a server's pool is in a client.
TEST_P(DeviceTest, PinsASharedView) {
  constexpr size_t kSize = 1 << 20;
  auto shared = SharedMemory::Create("gpu-test", kSize);
  ASSERT_TRUE(shared.ok()) << shared.status();
  std::ranges::copy(RandomBytes(kSize), (*shared)->data());
  auto view = SharedView::Map((*shared)->fd(), kSize);
  ASSERT_TRUE(view.ok()) << view.status();
  auto first = Run(device_->Pin((*view)->bytes()));
  if (!first.ok() && !fake()) GTEST_SKIP() << first.status();
  ASSERT_TRUE(first.ok()) << first.status();
  auto second = Run(device_->Pin((*view)->bytes()));
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(*first, *second);
  EXPECT_EQ(gpus_->Classify((*view)->bytes().data())->kind, MemoryKind::kPinned);

  DeviceBuffer buffer(device_, kSize);
  std::vector<std::byte> expected(kSize);
  Write(buffer, expected);
  CopyRandomPieces(buffer, (*view)->bytes(), 100, 4000, &expected);
  CopyRandomPieces(buffer, (*view)->bytes(), 2, 300'000, &expected);
  EXPECT_EQ(Read(buffer), expected);
  *first = nullptr;
  *second = nullptr;
  EXPECT_EQ(gpus_->Classify((*view)->bytes().data())->kind, MemoryKind::kHost);
}

// Whether the page with this byte is mapped in this process.
bool IsMapped(const std::byte* byte) {
  const int pages = ::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  uint64_t entry = 0;
  const auto at = static_cast<off_t>(reinterpret_cast<uintptr_t>(byte) / 4096 * sizeof entry);
  EXPECT_EQ(::pread(pages, &entry, sizeof entry, at), sizeof entry);
  ::close(pages);
  return (entry >> 63) != 0;
}

// The driver takes twice as long for pages that it has to have mapped.
TEST_P(DeviceTest, WhatIsPinnedIsMappedBefore) {
  constexpr size_t kSize = 1 << 20;
  auto shared = *SharedMemory::Create("gpu-test", kSize);
  std::ranges::copy(RandomBytes(kSize), shared->data());
  auto view = *SharedView::Map(shared->fd(), kSize);
  const std::byte* middle = view->bytes().data() + kSize / 2;
  ASSERT_FALSE(IsMapped(middle));
  auto pinned = Run(device_->Pin(view->bytes()));
  if (!pinned.ok() && !fake()) GTEST_SKIP() << pinned.status();
  ASSERT_TRUE(pinned.ok()) << pinned.status();
  EXPECT_TRUE(IsMapped(middle));
}

// A function may take long, such as registering memory: of several, copies wait for one.
TEST_P(DeviceTest, CopiesDoNotWaitForAllFunctions) {
  DeviceBuffer buffer(device_, 1 << 20);
  std::vector<std::byte> content = RandomBytes(1 << 20);
  CopyEngine& engine = (*device_->State())->engine();
  auto copy = std::make_shared<Job>(Job::Kind::kCopyIn);
  copy->segments = *PairPieces(std::vector{buffer.Piece(0, buffer.size())},
                               std::vector{iovec{content.data(), content.size()}});
  bool copied = false;
  auto call = [](int number, const JobPtr& copy, CopyEngine* engine, bool* copied) {
    return [=] {
      if (number == 0) engine->Submit(copy);
      if (number == 1) std::this_thread::sleep_for(std::chrono::milliseconds(200));
      if (number == 2) *copied = copy->done.IsSet();
      return OkStatus();
    };
  };
  std::vector<Task<Status>> calls;
  for (int i = 0; i < 3; ++i) calls.push_back(engine.Call(call(i, copy, &engine, &copied)));
  for (const Status& each : Run(WhenAll(std::move(calls)))) EXPECT_TRUE(each.ok()) << each;
  EXPECT_TRUE(copied);
  EXPECT_EQ(Read(buffer), content);
}

// The engine must survive it, and so must what is copied beside it.
TEST_P(DeviceTest, AFreedBufferFailsAlone) {
  DeviceBuffer freed(device_, 1 << 20), alive(device_, 1 << 20);
  std::vector<std::byte> content = RandomBytes(1 << 20);
  iovec from{content.data(), content.size()}, to_freed = freed.Piece(0, freed.size());
  std::vector<iovec> small;
  for (size_t at = 0; at < freed.size(); at += 8192) small.push_back({freed.data() + at, 100});
  freed.Free();
  std::vector<Task<Status>> tasks;
  tasks.push_back(device_->CopyIn({to_freed}, {from}));
  tasks.push_back(device_->CopyIn({alive.Piece(0, alive.size())}, {from}));
  tasks.push_back(device_->Zero(small));
  std::vector<Status> results = Run(WhenAll(std::move(tasks)));
  EXPECT_EQ(ToErrno(results[0]), EFAULT) << results[0];
  EXPECT_TRUE(results[1].ok()) << results[1];
  EXPECT_EQ(ToErrno(results[2]), EFAULT) << results[2];
  auto sums = Run(device_->Crc32c(small));
  EXPECT_EQ(ToErrno(sums.status()), EFAULT) << sums.status();
  EXPECT_EQ(Read(alive), content);
}

// A device that is ready starts no other thread, even if its state is asked for at the same moment.
TEST_P(DeviceTest, AThreadIsStartedOnceAtMost) {
  ASSERT_TRUE(Run(device_->Start()).ok());
  std::atomic<bool> stop = false;
  std::vector<std::thread> others;
  for (int i = 0; i < 3; ++i) {
    others.emplace_back([&] {
      while (!stop) EXPECT_TRUE(device_->State().ok());
    });
  }
  for (int i = 0; i < 2000; ++i) EXPECT_TRUE(Run(device_->Start()).ok());
  stop = true;
  for (std::thread& other : others) other.join();
  EXPECT_LE(device_->starts(), 1);
}

TEST_P(DeviceTest, TellsWhatItIs) {
  const DeviceInfo& info = device_->info();
  EXPECT_EQ(device_->name(), "cuda:0");
  EXPECT_FALSE(info.name.empty());
  EXPECT_FALSE(info.pci_bus_id.empty());
  EXPECT_GT(info.compute_major, 0);
  EXPECT_GT(info.memory_bytes, 0u);
  RecordProperty("gpu", info.name);
  RecordProperty("verification", device_->verification());
}

INSTANTIATE_TEST_SUITE_P(, DeviceTest, testing::Values(Driver::kFake, Driver::kReal), DriverName);

}  // namespace
}  // namespace nacre::gpu
