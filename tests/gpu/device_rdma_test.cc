#include <gmock/gmock.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "tests/gpu/gpu_fixture.h"

namespace nacre::gpu {
namespace {

using testing::HasSubstr;

class DeviceRdmaTest : public GpuTest {};

TEST_P(DeviceRdmaTest, ExportsWhatIsAskedFor) {
  DeviceBuffer buffer(device_, 1 << 20);
  std::span<const std::byte> memory(buffer.data() + 5000, 70'000);
  auto exported = device_->ExportDmaBuf(memory);
  if (!exported.ok() && !fake()) GTEST_SKIP() << exported.status();
  ASSERT_TRUE(exported.ok()) << exported.status();
  EXPECT_GE(exported->fd(), 0);
  EXPECT_EQ(exported->address() % 4096, exported->offset());
  EXPECT_EQ(exported->size(), memory.size());
}

TEST_P(DeviceRdmaTest, RefusesWhatIsNotItsOwn) {
  std::vector<std::byte> host(4096);
  Status status = device_->ExportDmaBuf(host).status();
  if (!fake() && ToErrno(status) == EOPNOTSUPP) GTEST_SKIP() << status;
  EXPECT_EQ(ToErrno(status), EFAULT) << status;
  EXPECT_EQ(ToErrno(device_->BufferId(host).status()), EFAULT);
}

TEST_P(DeviceRdmaTest, HasMemoryToTryOut) {
  auto memory = device_->TrialMemory();
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_GE(memory->size(), MemoryDevice::kTrialBytes);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->data()) % 4096, 0u);
  EXPECT_EQ(gpus_->Classify(memory->data(), memory->size())->device, device_);
  EXPECT_EQ(device_->TrialMemory()->data(), memory->data());
}

TEST_P(DeviceRdmaTest, OrdersCopies) {
  DeviceBuffer buffer(device_, 1 << 20);
  Status status = device_->SynchronizeCopies({buffer.data(), buffer.size()});
  EXPECT_TRUE(status.ok()) << status;
  status = device_->FlushRemoteWrites();
  EXPECT_TRUE(status.ok()) << status;
}

INSTANTIATE_TEST_SUITE_P(, DeviceRdmaTest, testing::Values(Driver::kFake, Driver::kReal), DriverName);

class FakeDeviceRdmaTest : public GpuTest {};

// Writes through the mapping of the exported file, as a NIC would.
TEST_P(FakeDeviceRdmaTest, TheExportIsTheMemory) {
  DeviceBuffer buffer(device_, 1 << 20);
  std::vector<std::byte> expected(buffer.size());
  Write(buffer, expected);
  auto exported = device_->ExportDmaBuf({buffer.data() + 123'456, 10'000});
  ASSERT_TRUE(exported.ok()) << exported.status();
  long begin = Fake::Get().DmaBufOffset(exported->fd());
  ASSERT_GE(begin, 0);
  size_t mapped = exported->offset() + exported->size();
  void* nic = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, exported->fd(), begin);
  ASSERT_NE(nic, MAP_FAILED);
  std::memset(static_cast<std::byte*>(nic) + exported->offset(), 7, exported->size());
  munmap(nic, mapped);
  std::fill_n(expected.begin() + 123'456, 10'000, std::byte{7});
  EXPECT_TRUE(Read(buffer) == expected);
}

TEST_P(FakeDeviceRdmaTest, SaysWhyNot) {
  DeviceBuffer buffer(device_, 4096);
  std::span<const std::byte> memory(buffer.data(), buffer.size());
  {
    WithKnobs with("export_error=801", "export_error=0");
    Status status = device_->ExportDmaBuf(memory).status();
    EXPECT_EQ(ToErrno(status), EOPNOTSUPP);
    EXPECT_THAT(std::string(status.message()), HasSubstr("CUDA_ERROR_NOT_SUPPORTED (801)"));
  }
  for (auto [knobs, back, reason] : {std::tuple{"dma_buf=0", "dma_buf=1", "open modules"},
                                     std::tuple{"driver=11040", "driver=13000", "CUDA 11.4"}}) {
    WithKnobs with(knobs, back);
    auto gpus = Gpus::Open({.library = FakeLibrary()});
    ASSERT_TRUE(gpus.ok()) << gpus.status();
    Status status = (*gpus)->devices().front()->ExportDmaBuf(memory).status();
    EXPECT_EQ(ToErrno(status), EOPNOTSUPP);
    EXPECT_THAT(std::string(status.message()), HasSubstr(reason));
  }
}

TEST_P(FakeDeviceRdmaTest, LooksForThePeerMemoryModule) {
  const std::filesystem::path sysfs = testing::TempDir() + "nacre_sysfs." + std::to_string(getpid());
  const std::filesystem::path module = sysfs / "module/nvidia_peermem";
  auto gpus = Gpus::Open({.library = FakeLibrary(), .sysfs = sysfs});
  ASSERT_TRUE(gpus.ok()) << gpus.status();
  MemoryDevice& device = *(*gpus)->devices().front();
  EXPECT_EQ(ToErrno(device.PeerMemory()), EOPNOTSUPP);
  EXPECT_THAT(std::string(device.PeerMemory().message()), HasSubstr("modprobe nvidia-peermem"));
  std::filesystem::create_directories(module);
  std::ofstream(module / "version") << "580.95.05\n";
  EXPECT_TRUE(device.PeerMemory().ok()) << device.PeerMemory();
  std::filesystem::remove_all(sysfs);
}

TEST_P(FakeDeviceRdmaTest, MostOfBar1MayBeRegistered) {
  EXPECT_EQ(device_->RdmaBudget(), UINT64_MAX);
  WithKnobs with("bar1=268435456", "bar1=0");
  EXPECT_EQ(device_->RdmaBudget(), 268435456u / 100 * 80);
}

TEST_P(FakeDeviceRdmaTest, FlushesOnlyWhereItMust) {
  const long before = Fake::Get().Count("flushes");
  ASSERT_TRUE(device_->FlushRemoteWrites().ok());
  EXPECT_EQ(Fake::Get().Count("flushes"), before);
  WithKnobs with("ordered=0", "ordered=1");
  auto gpus = Gpus::Open({.library = FakeLibrary()});
  ASSERT_TRUE(gpus.ok()) << gpus.status();
  ASSERT_TRUE((*gpus)->devices().front()->FlushRemoteWrites().ok());
  EXPECT_EQ(Fake::Get().Count("flushes"), before + 1);
}

TEST_P(FakeDeviceRdmaTest, AnIdIsThatOfAllSegments) {
  WithKnobs with("segments=4", "segments=1");
  DeviceBuffer buffer(device_, 1 << 20);
  const auto whole = device_->BufferId({buffer.data(), buffer.size()});
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(*device_->BufferId({buffer.data(), buffer.size()}), *whole);
  EXPECT_NE(*device_->BufferId({buffer.data(), 1000}), *whole);
}

TEST_P(FakeDeviceRdmaTest, AReusedAddressHasAnotherId) {
  DeviceBuffer first(device_, 1 << 20);
  std::span<const std::byte> memory(first.data(), first.size());
  auto id = device_->BufferId(memory);
  ASSERT_TRUE(id.ok()) << id.status();
  first.Free();
  EXPECT_EQ(ToErrno(device_->BufferId(memory).status()), EFAULT);
  DeviceBuffer second(device_, 1 << 20);
  ASSERT_EQ(second.data(), memory.data());
  EXPECT_NE(*device_->BufferId(memory), *id);
}

INSTANTIATE_TEST_SUITE_P(, FakeDeviceRdmaTest, testing::Values(Driver::kFake), DriverName);

}  // namespace
}  // namespace nacre::gpu
