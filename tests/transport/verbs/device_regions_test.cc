// Which registrations of a device's memory are made, kept and taken back, and what is said where none can be.
#include "transport/verbs/device_regions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "common/metrics.h"
#include "tests/transport/fake_device.h"
#include "tests/transport/transport_fixture.h"
#include "tests/transport/verbs/fake_rdma.h"

namespace nacre::verbs {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr size_t kBuffer = 64 << 10;
constexpr size_t kAll = 17 * kBuffer;

using Held = std::shared_ptr<const Registration>;

class DeviceRegionsTest : public ::testing::Test {
 protected:
  explicit DeviceRegionsTest(FakeRdma::Traits traits = {}) : rdma_(traits) {
    StatusOr<std::shared_ptr<Domain>> domain = Domain::Open(**LoadIbverbs(), "fake0");
    EXPECT_TRUE(domain.ok()) << domain.status();
    domain_ = *domain;
  }

  std::shared_ptr<MemoryRegion> Register(size_t offset, size_t size) {
    // As GPUs align their memory.
    const size_t first = -reinterpret_cast<uintptr_t>(device_->data()) % kBuffer;
    auto region = regions_->Register(device_, device_->data() + first + offset, size);
    EXPECT_TRUE(region.ok()) << region.status();
    return *region;
  }
  std::shared_ptr<MemoryRegion> Buffer(size_t number) { return Register(number * kBuffer, kBuffer); }
  StatusOr<Held> Find(const std::shared_ptr<MemoryRegion>& region) {
    return regions_->Find(domain_, *region);
  }
  Status Refusal(const std::shared_ptr<MemoryRegion>& region) {
    Status status = Find(region).status();
    EXPECT_EQ(ToErrno(status), ENOTSUP) << status;
    return status;
  }
  static int64_t Count(const std::string& what) { return GetCounter("transport.verbs.device." + what).Get(); }

  FakeRdma rdma_;
  std::shared_ptr<Domain> domain_;
  const std::shared_ptr<FakeDevice> device_ = std::make_shared<FakeDevice>(kAll);
  const std::shared_ptr<DeviceRegions> regions_ = std::make_shared<DeviceRegions>();
};

// Registering gigabytes takes seconds.
TEST_F(DeviceRegionsTest, WhatIsRegisteredHoldsUpNobodyElse) {
  auto slow = Buffer(0), other = Buffer(1);
  ASSERT_TRUE(Find(other).ok());
  rdma_.HoldRegistration(slow->data());
  std::atomic<int> found = 0;
  auto find = [&] { found += Find(slow).ok() ? 1 : 0; };
  std::thread first(find), second(find);
  ASSERT_TRUE(Eventually([&] { return rdma_.holds(); }));
  EXPECT_TRUE(Find(other).ok());      // is there
  EXPECT_TRUE(Find(Buffer(2)).ok());  // is registered meanwhile, and goes
  EXPECT_EQ(found, 0);
  rdma_.HoldRegistration(nullptr);
  first.join();
  second.join();
  EXPECT_EQ(found, 2);
  EXPECT_EQ(rdma_.regions(), 2);
}

// Memory that is being registered when the device fails does not stay registered with it.
TEST_F(DeviceRegionsTest, ADeviceThatFailsMeanwhileKeepsNothing) {
  auto slow = Buffer(0);
  rdma_.HoldRegistration(slow->data());
  StatusOr<Held> found = absl::UnknownError("");
  std::thread finds([&] { found = Find(slow); });
  ASSERT_TRUE(Eventually([&] { return rdma_.holds(); }));
  domain_->Retire();
  regions_->Forget(*domain_);
  rdma_.HoldRegistration(nullptr);
  finds.join();
  EXPECT_TRUE(absl::IsUnavailable(found.status())) << found.status();
  EXPECT_EQ(rdma_.regions(), 0);
}

TEST_F(DeviceRegionsTest, RegistersOnceWhatIsNamedTwice) {
  auto region = Register(1000, 5000);
  auto same = Register(1000, 5000);
  EXPECT_EQ(rdma_.regions(), 0);
  const int64_t hits = Count("hits");
  StatusOr<Held> first = Find(region);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(*Find(region), *first);
  EXPECT_EQ(*Find(same), *first);
  EXPECT_EQ(Count("hits") - hits, 2);
  EXPECT_EQ(rdma_.regions(), 1);
  // Exactly these bytes.
  EXPECT_EQ((*first)->region()->length, 5000u);
  region.reset();
  EXPECT_EQ(*Find(same), *first);
  same.reset();
  EXPECT_EQ(rdma_.regions(), 1);  // in use
  first->reset();
  EXPECT_EQ(rdma_.regions(), 0);
}

TEST_F(DeviceRegionsTest, MemoryThatIsAnotherNowIsRegisteredAnew) {
  auto region = Buffer(0);
  StatusOr<Held> old = Find(region);
  ASSERT_TRUE(old.ok()) << old.status();
  const int64_t stale = Count("stale");
  device_->ChangeBufferId();
  StatusOr<Held> now = Find(region);
  ASSERT_TRUE(now.ok()) << now.status();
  EXPECT_NE(*now, *old);
  EXPECT_EQ(Count("stale") - stale, 1);
  EXPECT_EQ(rdma_.regions(), 2);
  old->reset();
  EXPECT_EQ(rdma_.regions(), 1);
}

TEST_F(DeviceRegionsTest, TheLeastRecentlyUsedMakesRoom) {
  device_->SetRdmaBudget(3 * kBuffer);
  std::vector<std::shared_ptr<MemoryRegion>> buffers;
  for (size_t i = 0; i < 5; ++i) buffers.push_back(Buffer(i));
  const int64_t evicted = Count("evicted"), cached = Count("registrations");
  StatusOr<Held> in_use = Find(buffers[0]);
  ASSERT_TRUE(in_use.ok()) << in_use.status();
  for (size_t i : {1, 2, 1}) ASSERT_TRUE(Find(buffers[i]).ok()) << i;
  EXPECT_EQ(Count("evicted"), evicted);
  ASSERT_TRUE(Find(buffers[3]).ok());  // instead of 2
  EXPECT_EQ(Count("evicted") - evicted, 1);
  EXPECT_EQ(Count("registrations") - cached, 3);
  const int64_t hits = Count("hits");
  ASSERT_TRUE(Find(buffers[1]).ok());
  ASSERT_TRUE(Find(buffers[0]).ok());
  EXPECT_EQ(Count("hits") - hits, 2);
  EXPECT_EQ(rdma_.regions(), 3);
}

class TwoDevicesTest : public DeviceRegionsTest {
 protected:
  TwoDevicesTest() : DeviceRegionsTest({.devices = 2}) {
    StatusOr<std::shared_ptr<Domain>> second = Domain::Open(**LoadIbverbs(), "fake1");
    EXPECT_TRUE(second.ok()) << second.status();
    second_ = *second;
  }

  std::shared_ptr<Domain> second_;
};

// A dma-buf is mapped for PCIe once, whichever RDMA devices use it.
TEST_F(TwoDevicesTest, ABufferTakesRoomOnceForAllDevices) {
  device_->SetRdmaBudget(2 * kBuffer);
  auto first = Buffer(0), other = Buffer(1), third = Buffer(2);
  StatusOr<Held> one = Find(first);
  ASSERT_TRUE(one.ok()) << one.status();
  ASSERT_TRUE(regions_->Find(second_, *other).ok());
  const int exports = device_->exports();
  const int64_t evicted = Count("evicted");
  StatusOr<Held> two = regions_->Find(second_, *first);
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_NE(*one, *two);
  ASSERT_TRUE(Find(other).ok());
  EXPECT_EQ(device_->exports(), exports);
  EXPECT_EQ(Count("evicted"), evicted);
  EXPECT_EQ(rdma_.regions(), 4);
  // Where one of them is in use, nothing is gained by the other.
  one->reset();
  ASSERT_TRUE(Find(third).ok());
  EXPECT_EQ(Count("evicted") - evicted, 2);
  EXPECT_EQ(rdma_.regions(), 3);
  EXPECT_EQ(*regions_->Find(second_, *first), *two);
  // The room is free again when the last of them is gone.
  two->reset();
  first.reset();
  third.reset();
  EXPECT_EQ(rdma_.regions(), 0);
  EXPECT_TRUE(Find(Register(0, 2 * kBuffer)).ok());
}

// Memory that is another now has another dma-buf.
TEST_F(TwoDevicesTest, ADmaBufOfFreedMemoryIsNotUsedAgain) {
  auto region = Buffer(0);
  StatusOr<Held> old = Find(region);
  ASSERT_TRUE(old.ok() && regions_->Find(second_, *Buffer(1)).ok());
  const int exports = device_->exports();
  device_->ChangeBufferId();
  ASSERT_TRUE(regions_->Find(second_, *region).ok());
  EXPECT_EQ(device_->exports() - exports, 1);
}

TEST_F(DeviceRegionsTest, WhatIsInUseMakesNoRoom) {
  device_->SetRdmaBudget(2 * kBuffer);
  auto first = Buffer(0), second = Buffer(1), third = Buffer(2);
  StatusOr<Held> one = Find(first), two = Find(second);
  ASSERT_TRUE(one.ok() && two.ok());
  const int64_t refused = Count("refused");
  EXPECT_THAT(std::string(Refusal(third).message()),
              AllOf(HasSubstr("in use just now"), HasSubstr("131072"), HasSubstr("BAR1")));
  EXPECT_EQ(Count("refused") - refused, 1);
  // Memory that has lost its region takes room until it is not used any more.
  first.reset();
  EXPECT_THAT(std::string(Refusal(third).message()), HasSubstr("in use just now"));
  one->reset();
  EXPECT_TRUE(Find(third).ok());
  EXPECT_THAT(std::string(Refusal(Register(0, 3 * kBuffer)).message()), HasSubstr("use smaller buffers"));
}

TEST_F(DeviceRegionsTest, ADeviceThatIsFullBeforeItsBudgetIsMadeRoomIn) {
  auto first = Buffer(0), second = Buffer(1);
  ASSERT_TRUE(Find(first).ok());
  rdma_.RefuseDmaBufs(ENOMEM);
  const int64_t evicted = Count("evicted");
  EXPECT_THAT(std::string(Refusal(second).message()), HasSubstr("dma-buf: 65536 bytes"));
  EXPECT_EQ(Count("evicted") - evicted, 1);
  rdma_.RefuseDmaBufs(0);
  EXPECT_TRUE(Find(first).ok());
  EXPECT_TRUE(Find(second).ok());
}

TEST_F(DeviceRegionsTest, ARefusalNamesWhatWasTriedAndWhatIsMissing) {
  device_->FailExports(ErrnoError(EOPNOTSUPP, "CUDA_ERROR_NOT_SUPPORTED (801): no open modules"));
  device_->SetPeerMemory(ErrnoError(ENOTSUP, "nvidia-peermem is not loaded: modprobe nvidia-peermem"));
  auto region = Buffer(0);
  const std::string why(Refusal(region).message());
  EXPECT_EQ(why,
            "RDMA device fake0 cannot write into fake:0: dma-buf: CUDA_ERROR_NOT_SUPPORTED (801): no open "
            "modules; peer memory: nvidia-peermem is not loaded: modprobe nvidia-peermem");
  // The verdict is kept.
  device_->FailExports(OkStatus());
  EXPECT_EQ(std::string(Refusal(region).message()), why);
  regions_->Forget(*domain_);
  EXPECT_TRUE(Find(region).ok());
}

// As the memory of CUDA's pools: it says nothing of the application's other buffers.
TEST_F(DeviceRegionsTest, ABufferThatCannotBeRegisteredIsRefusedAlone) {
  auto pooled = Buffer(0), plain = Buffer(1);
  device_->FailExportsOf({pooled->data(), kBuffer});
  EXPECT_THAT(std::string(Refusal(pooled).message()), HasSubstr("memory of a pool"));
  EXPECT_TRUE(Find(plain).ok());
  // It is asked for once, not with each call.
  const int exports = device_->exports();
  EXPECT_THAT(std::string(Refusal(pooled).message()), HasSubstr("memory of a pool"));
  EXPECT_EQ(device_->exports(), exports);
  // Other memory at its place is other memory.
  device_->FailExportsOf({});
  device_->ChangeBufferId();
  EXPECT_TRUE(Find(pooled).ok());
}

TEST_F(DeviceRegionsTest, ATrialThatLackedMemoryIsMadeAgain) {
  device_->FailExports(ErrnoError(ENOMEM, "CUDA_ERROR_OUT_OF_MEMORY (2)"));
  auto region = Buffer(0);
  EXPECT_THAT(std::string(Refusal(region).message()), HasSubstr("OUT_OF_MEMORY"));
  device_->FailExports(OkStatus());
  EXPECT_TRUE(Find(region).ok());
}

TEST_F(DeviceRegionsTest, PeerMemoryWhereThereAreNoDmaBufs) {
  rdma_.RefuseDmaBufs(EOPNOTSUPP);
  device_->SetPeerMemory(OkStatus());
  auto region = Buffer(0);
  // It promises what it does not keep.
  EXPECT_THAT(std::string(Refusal(region).message()),
              AllOf(HasSubstr("driver of RDMA device fake0 registers no dma-bufs"),
                    HasSubstr("peer memory: 65536 bytes"), HasSubstr("Bad address")));
  rdma_.UsePeerMemory([&](const std::byte* address, size_t) {
    return device_->alias().data() + (address - device_->data());
  });
  regions_->Forget(*domain_);
  StatusOr<Held> held = Find(region);
  ASSERT_TRUE(held.ok()) << held.status();
  const DeviceVerdict verdict = TryDeviceMemory(domain_, *device_);
  EXPECT_TRUE(verdict.status.ok());
  EXPECT_EQ(Name(verdict.mechanism), "peer memory");
  EXPECT_THAT(verdict.reason, HasSubstr("dma-buf: the driver of RDMA device fake0"));
}

TEST_F(DeviceRegionsTest, WhatCannotBeFlushedIsNotWrittenInto) {
  device_->FailFlushes(ErrnoError(ENOTSUP, "the driver cannot flush"));
  EXPECT_THAT(std::string(Refusal(Buffer(0)).message()),
              AllOf(HasSubstr("might not be seen"), HasSubstr("the driver cannot flush")));
}

TEST_F(DeviceRegionsTest, AFailedDeviceIsNotUsedAgain) {
  auto region = Buffer(0);
  ASSERT_TRUE(Find(region).ok());
  domain_->Retire();
  regions_->Forget(*domain_);
  EXPECT_EQ(rdma_.regions(), 0);
  EXPECT_TRUE(absl::IsUnavailable(Find(region).status()));
}

class OldLibraryTest : public DeviceRegionsTest {
 protected:
  OldLibraryTest() : DeviceRegionsTest({.dma_bufs = false}) {}
};

TEST_F(OldLibraryTest, SaysWhatToInstall) {
  EXPECT_THAT(std::string(Refusal(Buffer(0)).message()), HasSubstr("install rdma-core 34 or newer"));
}

}  // namespace
}  // namespace nacre::verbs
