#include "tests/gpu/gpu_fixture.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

namespace nacre::gpu {

std::string FakeLibrary() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "libnacre-fake-cuda.so";
}

std::string DriverName(const testing::TestParamInfo<Driver>& info) {
  return info.param == Driver::kFake ? "Fake" : "Real";
}

Fake& Fake::Get() {
  static Fake fake;
  return fake;
}

Fake::Fake() {
  void* library = dlopen(FakeLibrary().c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) std::abort();
  configure_ = reinterpret_cast<decltype(configure_)>(dlsym(library, "nacre_fake_cuda_configure"));
  alias_ = reinterpret_cast<decltype(alias_)>(dlsym(library, "nacre_fake_cuda_alias"));
  count_ = reinterpret_cast<decltype(count_)>(dlsym(library, "nacre_fake_cuda_count"));
  dma_buf_offset_ =
      reinterpret_cast<decltype(dma_buf_offset_)>(dlsym(library, "nacre_fake_cuda_dma_buf_offset"));
}

DeviceBuffer::DeviceBuffer(const std::shared_ptr<Device>& device, size_t size) : size_(size) {
  auto state = device->State();
  EXPECT_TRUE(state.ok()) << state.status();
  context_ = (*state)->context();
  UseContext use(*context_);
  CudaAddress address = 0;
  EXPECT_TRUE(context_->cuda().Check(context_->cuda()->MemAlloc(&address, size), "cuMemAlloc").ok());
  data_ = reinterpret_cast<std::byte*>(address);
}

void DeviceBuffer::Free() {
  if (data_ == nullptr) return;
  UseContext use(*context_);
  context_->cuda()->MemFree(reinterpret_cast<CudaAddress>(data_));
  data_ = nullptr;
}

void GpuFixture::Open(Driver driver) {
  const bool fake = driver == Driver::kFake;
  Options options;
  if (fake) options.library = FakeLibrary();
  // Another library than the system's is none of the real ones.
  if (!fake && std::getenv("NACRE_CUDA_LIBRARY") != nullptr) GTEST_SKIP() << "NACRE_CUDA_LIBRARY is set";
  auto gpus = Gpus::Open(options);
  if (!gpus.ok() && !fake) GTEST_SKIP() << gpus.status().message();
  ASSERT_TRUE(gpus.ok()) << gpus.status();
  gpus_ = *gpus;
  device_ = gpus_->devices().front();
}

std::vector<std::byte> GpuFixture::Read(const DeviceBuffer& buffer) {
  std::vector<std::byte> content(buffer.size());
  Status status = Run(device_->CopyOut({{content.data(), content.size()}}, {buffer.Piece(0, buffer.size())}));
  EXPECT_TRUE(status.ok()) << status;
  return content;
}

void GpuFixture::Write(const DeviceBuffer& buffer, std::span<const std::byte> content) {
  iovec from{const_cast<std::byte*>(content.data()), content.size()};
  Status status = Run(device_->CopyIn({buffer.Piece(0, content.size())}, {from}));
  EXPECT_TRUE(status.ok()) << status;
}

std::vector<std::byte> GpuFixture::RandomBytes(size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random_());
  return bytes;
}

std::vector<std::pair<size_t, size_t>> GpuFixture::RandomExtents(size_t size, size_t count, size_t longest) {
  std::vector<std::pair<size_t, size_t>> extents;
  size_t room = size / count;
  for (size_t i = 0; i < count; ++i) {
    size_t length = 1 + Random(std::min(longest, room));
    extents.emplace_back(i * room + Random(room - length + 1), length);
  }
  std::shuffle(extents.begin(), extents.end(), random_);
  return extents;
}

}  // namespace nacre::gpu
