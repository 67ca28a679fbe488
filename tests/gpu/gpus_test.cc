// Which GPU's memory an address is, or the host's.
#include "gpu/gpus.h"

#include <gmock/gmock.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "tests/gpu/gpu_fixture.h"

namespace nacre::gpu {
namespace {

using testing::HasSubstr;

class GpusTest : public GpuTest {};
class FakeGpusTest : public GpuTest {};

TEST_P(GpusTest, KnowsHostMemory) {
  int on_stack = 0;
  auto memory = gpus_->Classify(&on_stack, sizeof on_stack);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(memory->kind, MemoryKind::kHost);
  EXPECT_EQ(memory->device, nullptr);
}

TEST_P(GpusTest, KnowsDeviceMemory) {
  DeviceBuffer buffer(device_, 100'000);
  auto memory = gpus_->Classify(buffer.data() + 5000, 95'000);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(memory->kind, MemoryKind::kDevice);
  EXPECT_EQ(memory->device, device_);
  EXPECT_EQ(memory->allocation.data(), buffer.data());
  EXPECT_GE(memory->allocation.size(), buffer.size());
  EXPECT_TRUE(gpus_->CheckDeviceSpan(*device_, {buffer.data(), buffer.size()}).ok());
}

TEST_P(GpusTest, KnowsPinnedMemory) {
  auto staged = Run(device_->Stage(1000));
  ASSERT_TRUE(staged.ok()) << staged.status();
  auto memory = gpus_->Classify(staged->bytes.data(), 1000);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(memory->kind, MemoryKind::kPinned);
}

TEST_P(GpusTest, RefusesASpanThatLeavesItsAllocation) {
  DeviceBuffer buffer(device_, 8 << 20);
  Status status = gpus_->Classify(buffer.data() + 4096, buffer.size()).status();
  EXPECT_EQ(ToErrno(status), EFAULT) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("leave their allocation"));
}

TEST_P(GpusTest, RefusesAFreedBuffer) {
  DeviceBuffer buffer(device_, 8 << 20);
  std::byte* data = buffer.data();
  buffer.Free();
  Status status = gpus_->Classify(data, 4096).status();
  EXPECT_EQ(ToErrno(status), EFAULT) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("was it freed?"));
}

TEST_P(GpusTest, RefusesHostMemoryAsADevices) {
  int on_stack = 0;
  auto* bytes = reinterpret_cast<std::byte*>(&on_stack);
  Status status = gpus_->CheckDeviceSpan(*device_, {bytes, sizeof on_stack});
  EXPECT_EQ(ToErrno(status), EINVAL) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("memory of the host, not of cuda:0"));
}

// Of a context that the application has made for itself: CUDA promises no address of it to the kernels of
// another, and one that went astray would break the device for the whole process.
TEST_P(GpusTest, RefusesMemoryOfAnotherContext) {
  DeviceBuffer ours(device_, 1 << 20);
  const CudaLibrary& cuda = (*device_->State())->context()->cuda();
  CudaContext other = nullptr, popped = nullptr;
  const auto create = Symbol<CudaResult(CudaContext*, unsigned, CudaDevice)>("cuCtxCreate_v2");
  const auto destroy = Symbol<CudaResult(CudaContext)>("cuCtxDestroy_v2");
  ASSERT_EQ(create(&other, 0, 0), kCudaSuccess);
  CudaAddress address = 0;
  ASSERT_EQ(cuda->MemAlloc(&address, 1 << 20), kCudaSuccess);
  ASSERT_EQ(cuda->CtxPopCurrent(&popped), kCudaSuccess);
  auto* theirs = reinterpret_cast<std::byte*>(address);
  Status status = gpus_->Classify(theirs, 1 << 20).status();
  EXPECT_EQ(ToErrno(status), EINVAL) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("another CUDA context"));
  const auto sums = Run(device_->Crc32c({{theirs, 1 << 20}}));
  EXPECT_EQ(ToErrno(sums.status()), EINVAL) << sums.status();
  EXPECT_EQ(ToErrno(Run(device_->Zero({{theirs, 1 << 20}}))), EINVAL);
  EXPECT_EQ(ToErrno(device_->BufferId({theirs, 1 << 20}).status()), EINVAL);
  EXPECT_TRUE(Run(device_->Crc32c({ours.Piece(0, ours.size())})).ok());
  ASSERT_EQ(destroy(other), kCudaSuccess);
}

// Memory from cudaMallocAsync belongs to no context.
TEST_P(GpusTest, TakesMemoryOfAPool) {
  if (fake()) GTEST_SKIP() << "the fake has no pools";
  const std::shared_ptr<Context> context = (*device_->State())->context();
  const auto allocate = Symbol<CudaResult(CudaAddress*, size_t, CudaStream)>("cuMemAllocAsync");
  const auto free = Symbol<CudaResult(CudaAddress, CudaStream)>("cuMemFreeAsync");
  UseContext use(*context);
  CudaAddress address = 0;
  ASSERT_EQ(allocate(&address, 1 << 20, nullptr), kCudaSuccess);
  ASSERT_EQ(context->cuda()->StreamSynchronize(nullptr), kCudaSuccess);
  const auto info = gpus_->Classify(reinterpret_cast<const void*>(address), 1 << 20);
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->device, device_);
  EXPECT_TRUE(Run(device_->Crc32c({{reinterpret_cast<void*>(address), 1 << 20}})).ok());
  EXPECT_EQ(free(address, nullptr), kCudaSuccess);
}

// Of the default streams, that of the thread's context.
TEST_P(GpusTest, KnowsWhoseAStreamIs) {
  const std::shared_ptr<Context> context = (*device_->State())->context();
  CudaStream stream = nullptr;
  {
    UseContext use(*context);
    ASSERT_EQ(context->cuda()->StreamCreate(&stream, kCudaStreamNonBlocking), kCudaSuccess);
    for (const uintptr_t handle : {0, 1, 2}) {
      const auto its = gpus_->OfStream(reinterpret_cast<void*>(handle));
      ASSERT_TRUE(its.ok()) << its.status();
      EXPECT_EQ(*its, device_);
    }
  }
  const auto its = gpus_->OfStream(stream);
  ASSERT_TRUE(its.ok()) << its.status();
  EXPECT_EQ(*its, device_);
  UseContext use(*context);
  EXPECT_EQ(context->cuda()->StreamDestroy(stream), kCudaSuccess);
}

TEST_P(GpusTest, WhoseADefaultStreamIsAThreadWithoutContextCannotTell) {
  std::thread([&] {
    const Status status = gpus_->OfStream(nullptr).status();
    EXPECT_EQ(ToErrno(status), EIO) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("cuStreamGetCtx"));
  }).join();
}

INSTANTIATE_TEST_SUITE_P(, GpusTest, testing::Values(Driver::kFake, Driver::kReal), DriverName);

TEST_P(FakeGpusTest, RefusesAnotherDevicesMemory) {
  WithKnobs with("devices=2", "devices=1");
  auto gpus = Gpus::Open({.library = FakeLibrary()});
  ASSERT_TRUE(gpus.ok()) << gpus.status();
  ASSERT_EQ((*gpus)->devices().size(), 2u);
  DeviceBuffer buffer((*gpus)->devices()[1], 4096);
  Status status = (*gpus)->CheckDeviceSpan(*(*gpus)->devices()[0], {buffer.data(), 100});
  EXPECT_EQ(ToErrno(status), EINVAL);
  EXPECT_THAT(std::string(status.message()), HasSubstr("memory of cuda:1, not of cuda:0"));
}

TEST_P(FakeGpusTest, KnowsTheStreamsOfTwo) {
  WithKnobs with("devices=2", "devices=1");
  auto gpus = Gpus::Open({.library = FakeLibrary()});
  ASSERT_TRUE(gpus.ok()) << gpus.status();
  for (const std::shared_ptr<Device>& device : (*gpus)->devices()) {
    const std::shared_ptr<Context> context = (*device->State())->context();
    UseContext use(*context);
    CudaStream stream = nullptr;
    ASSERT_EQ(context->cuda()->StreamCreate(&stream, 0), kCudaSuccess);
    std::thread([&] { EXPECT_EQ(*(*gpus)->OfStream(stream), device); }).join();
    EXPECT_EQ(*(*gpus)->OfStream(nullptr), device);
    EXPECT_EQ(context->cuda()->StreamDestroy(stream), kCudaSuccess);
  }
}

TEST_P(FakeGpusTest, ABufferMayConsistOfSegments) {
  WithKnobs with("segments=4", "segments=1");
  DeviceBuffer buffer(device_, 1 << 20);
  auto memory = gpus_->Classify(buffer.data() + 1000, buffer.size() - 1000);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(memory->allocation.size(), buffer.size());
  EXPECT_TRUE(gpus_->IsStill(memory->buffer_id, buffer.data() + 1000, buffer.size() - 1000));
  EXPECT_LT(gpus_->Classify(buffer.data())->allocation.size(), buffer.size());
  EXPECT_EQ(ToErrno(gpus_->Classify(buffer.data() + 1, buffer.size()).status()), EFAULT);
}

TEST_P(FakeGpusTest, AReusedAddressHasAnotherId) {
  DeviceBuffer first(device_, 1 << 20);
  std::byte* address = first.data();
  uint64_t id = gpus_->Classify(address)->buffer_id;
  EXPECT_EQ(gpus_->Classify(address + 5000)->buffer_id, id);
  EXPECT_TRUE(gpus_->IsStill(id, address + 5000, 1000));
  first.Free();
  EXPECT_FALSE(gpus_->IsStill(id, address + 5000, 1000));
  DeviceBuffer second(device_, 1 << 20);
  ASSERT_EQ(second.data(), address);
  EXPECT_NE(gpus_->Classify(address)->buffer_id, id);
  EXPECT_FALSE(gpus_->IsStill(id, address, 1000)) << "it is another one's";
}

INSTANTIATE_TEST_SUITE_P(, FakeGpusTest, testing::Values(Driver::kFake), DriverName);

}  // namespace
}  // namespace nacre::gpu
