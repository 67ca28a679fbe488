// Drivers and machines that lack something: what still works, and the errors that say why not. On the fake
// driver, whose knobs take it away.
#include <gmock/gmock.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "common/crc32c.h"
#include "tests/gpu/gpu_fixture.h"
#include "transport/shared_memory.h"

namespace nacre::gpu {
namespace {

using testing::HasSubstr;

class LackTest : public GpuTest {
 public:
  // Opens the driver anew, after knobs have changed.
  void Reopen(Options options = {}) {
    options.library = FakeLibrary();
    auto gpus = Gpus::Open(options);
    ASSERT_TRUE(gpus.ok()) << gpus.status();
    gpus_ = *gpus;
    device_ = gpus_->devices().front();
  }

  // Copies, sums and zeroes, and looks whether that was right.
  void CheckThatAllWorks() {
    DeviceBuffer buffer(device_, 3 << 20);
    std::vector<std::byte> content = RandomBytes(buffer.size());
    Write(buffer, content);
    const std::vector<std::byte> before = content;
    std::vector<iovec> pieces;
    std::vector<uint32_t> expected, of_blocks;
    for (auto [offset, length] : RandomExtents(buffer.size(), 30, 90'000)) {
      pieces.push_back(buffer.Piece(offset, length));
      expected.push_back(nacre::Crc32c(std::span(content).subspan(offset, length)));
      of_blocks.resize(of_blocks.size() + CrcCount(0, length));
      Crc32cBlocks(0, std::span(content).subspan(offset, length),
                   &of_blocks[of_blocks.size() - CrcCount(0, length)]);
      std::fill_n(content.begin() + offset, length, std::byte{0});
    }
    auto sums = Run(device_->Crc32c(pieces));
    ASSERT_TRUE(sums.ok()) << sums.status();
    EXPECT_EQ(*sums, expected);
    std::vector<iovec> all(1, buffer.Piece(0, buffer.size()));
    std::vector<iovec> same(1, iovec{const_cast<std::byte*>(before.data()), before.size()});
    auto behind = Run(device_->CopyInAndSum(std::move(all), std::move(same), pieces));
    ASSERT_TRUE(behind.ok()) << behind.status();
    EXPECT_EQ(*behind, of_blocks);
    Status zeroed = Run(device_->Zero(pieces));
    EXPECT_TRUE(zeroed.ok()) << zeroed;
    EXPECT_TRUE(Read(buffer) == content);
  }
};

TEST_P(LackTest, Nothing) {
  CheckThatAllWorks();
  EXPECT_EQ(device_->verification(), KernelImage().empty() ? device_->verification() : "gpu");
}

TEST_P(LackTest, Kernels) {
  WithKnobs with("kernels=0", "kernels=1");
  Reopen();
  long launches = Fake::Get().Count("launches");
  CheckThatAllWorks();
  EXPECT_EQ(Fake::Get().Count("launches"), launches);
  EXPECT_EQ(ToErrno(device_->kernels()), EOPNOTSUPP);
  EXPECT_THAT(device_->verification(), HasSubstr("cpu ("));
}

TEST_P(LackTest, WishForKernels) {
  Reopen({.kernels = false});
  CheckThatAllWorks();
  EXPECT_EQ(device_->verification(), "cpu (kernels are switched off)");
}

TEST_P(LackTest, CopiesInOneCall) {
  for (const char* driver : {"driver=12040", "driver=13000"}) {
    WithKnobs with(driver, "driver=13000");
    Reopen({.kernels = false});
    long batches = Fake::Get().Count("batches");
    DeviceBuffer buffer(device_, 1 << 20);
    std::vector<std::byte> content = RandomBytes(buffer.size()), expected(buffer.size());
    Write(buffer, expected);
    std::vector<iovec> to, from;
    for (size_t at = 0; at + 2000 < content.size(); at += 2000) {
      to.push_back(buffer.Piece(at, 1000));
      from.push_back({content.data() + at + 100, 1000});
      std::copy_n(content.begin() + at + 100, 1000, expected.begin() + at);
    }
    ASSERT_TRUE(Run(device_->CopyIn(to, from)).ok());
    EXPECT_TRUE(Read(buffer) == expected) << driver;
    EXPECT_EQ(Fake::Get().Count("batches") > batches, std::string_view(driver) == "driver=13000");
  }
}

TEST_P(LackTest, ReadOnlyRegistration) {
  auto shared = SharedMemory::Create("gpu-test", 1 << 20);
  ASSERT_TRUE(shared.ok());
  auto view = SharedView::Map((*shared)->fd(), 1 << 20);
  ASSERT_TRUE(view.ok());
  WithKnobs with("read_only_register=0", "read_only_register=1");
  Reopen();
  auto pinned = Run(device_->Pin((*view)->bytes()));
  EXPECT_EQ(ToErrno(pinned.status()), EOPNOTSUPP);
  EXPECT_THAT(std::string(pinned.status().message()),
              HasSubstr("cuMemHostRegister: CUDA_ERROR_INVALID_VALUE"));
  // It works all the same.
  std::ranges::copy(RandomBytes(1000), (*shared)->data());
  DeviceBuffer buffer(device_, 1000);
  Write(buffer, (*view)->bytes().first(1000));
  EXPECT_TRUE(std::ranges::equal(Read(buffer), (*view)->bytes().first(1000)));
}

TEST_P(LackTest, WhatIsRegisteredBySomebodyElse) {
  std::vector<std::byte> memory(1 << 20);
  UseContext use(*(*device_->State())->context());
  const CudaLibrary& cuda = (*device_->State())->context()->cuda();
  ASSERT_EQ(cuda->MemHostRegister(memory.data(), memory.size(), 0), kCudaSuccess);
  auto pinned = Run(device_->Pin(memory));
  ASSERT_TRUE(pinned.ok()) << pinned.status();
  *pinned = nullptr;
  EXPECT_EQ(cuda->MemHostUnregister(memory.data()), kCudaSuccess) << "ours to end, not the token's";
}

TEST_P(LackTest, RegistrationsEndWithTheirTokens) {
  std::vector<std::byte> memory(1 << 20);
  for (int round = 0; round < 3; ++round) {
    auto first = Run(device_->Pin(memory));
    auto second = Run(device_->Pin(memory));
    ASSERT_TRUE(first.ok() && second.ok());
    EXPECT_EQ(Fake::Get().Count("registered"), 1);
    *first = nullptr;
    EXPECT_EQ(Fake::Get().Count("registered"), 1);
    *second = nullptr;
    EXPECT_EQ(Fake::Get().Count("registered"), 0);
  }
}

TEST_P(LackTest, AllCopiesRefused) {
  DeviceBuffer buffer(device_, 1 << 20);
  std::vector<std::byte> content = RandomBytes(buffer.size());
  {
    WithKnobs with("copy_errors=0", "copy_errors=-1");
    Status status = Run(device_->CopyIn({buffer.Piece(0, 100)}, {{content.data(), 100}}));
    EXPECT_EQ(ToErrno(status), EIO);
    EXPECT_THAT(std::string(status.message()), HasSubstr("cuMemcpyHtoDAsync"));
  }
  Write(buffer, content);
  EXPECT_EQ(Read(buffer), content);
}

// A broken device says so to everybody, and can be let go of.
TEST_P(LackTest, ADeviceThatBreaks) {
  DeviceBuffer buffer(device_, 1 << 20);
  std::vector<std::byte> content = RandomBytes(buffer.size());
  WithKnobs with("device_error=0", "device_error=-1");
  std::vector<Task<Status>> tasks;
  for (size_t at = 0; at < 10; ++at)
    tasks.push_back(device_->CopyIn({buffer.Piece(at * 1000, 1000)}, {{content.data(), 1000}}));
  for (const Status& status : Run(WhenAll(std::move(tasks)))) EXPECT_EQ(ToErrno(status), EIO) << status;
  Status later = Run(device_->Zero({buffer.Piece(0, 10)}));
  EXPECT_THAT(std::string(later.message()), HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"));
}

TEST_P(LackTest, PinnedMemory) {
  WithKnobs with("pinned=1", "pinned=0");
  auto staged = Run(device_->Stage(1000));
  EXPECT_EQ(ToErrno(staged.status()), ENOMEM) << staged.status();
}

// Nothing may stay behind at the driver.
TEST_P(LackTest, EverythingIsGivenBack) {
  CheckThatAllWorks();
  gpus_ = nullptr;
  device_ = nullptr;
  for (const char* what : {"contexts", "pinned", "registered", "streams", "events", "allocations"})
    EXPECT_EQ(Fake::Get().Count(what), 0) << what;
}

// The point of the fake: whoever touches device memory with the CPU dies on the spot.
TEST_P(LackTest, AStrayAccessDies) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  DeviceBuffer buffer(device_, 4096);
  EXPECT_DEATH(std::memset(buffer.data(), 0, 1), "");
  EXPECT_DEATH(std::fprintf(stderr, "%d", static_cast<int>(*buffer.data())), "");
  Status status = Run(device_->Zero({buffer.Piece(0, 1)}));
  EXPECT_TRUE(status.ok()) << status;
}

INSTANTIATE_TEST_SUITE_P(, LackTest, testing::Values(Driver::kFake), DriverName);

}  // namespace
}  // namespace nacre::gpu
