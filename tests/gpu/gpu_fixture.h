// The fixtures of the tests of gpu/: they run on the fake driver, which lies beside the test program, and on
// the real one if this machine has it. Not thread-safe.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "common/runtime.h"
#include "gpu/device_state.h"
#include "gpu/gpus.h"
#include "tests/gpu/fake_cuda/fake_cuda.h"

namespace nacre::gpu {

// The library beside this program.
std::string FakeLibrary();

// Functions of the fake driver.
class Fake {
 public:
  static Fake& Get();
  void Configure(const char* knobs) { ASSERT_EQ(configure_(knobs), 0) << knobs; }
  void* Alias(const void* device_address) { return alias_(device_address); }
  long Count(const char* what) { return count_(what); }
  long DmaBufOffset(int fd) { return dma_buf_offset_(fd); }

 private:
  Fake();
  decltype(&nacre_fake_cuda_configure) configure_;
  decltype(&nacre_fake_cuda_alias) alias_;
  decltype(&nacre_fake_cuda_count) count_;
  decltype(&nacre_fake_cuda_dma_buf_offset) dma_buf_offset_;
};

// Sets knobs of the fake driver, and back at the end.
class WithKnobs {
 public:
  WithKnobs(const char* knobs, const char* back) : back_(back) { Fake::Get().Configure(knobs); }
  ~WithKnobs() { Fake::Get().Configure(back_); }

 private:
  const char* const back_;
};

// Memory as an application would allocate it.
class DeviceBuffer {
 public:
  DeviceBuffer(const std::shared_ptr<Device>& device, size_t size);
  ~DeviceBuffer() { Free(); }
  void Free();

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  iovec Piece(size_t offset, size_t length) const { return {data_ + offset, length}; }

 private:
  std::shared_ptr<Context> context_;
  std::byte* data_ = nullptr;
  size_t size_;
};

enum class Driver { kFake, kReal };

class GpuFixture : public testing::Test {
 public:
  // First. Skips if there is no such driver.
  void Open(Driver driver);

  template <typename T>
  T Run(Task<T> task) {
    return runtime_.Run(std::move(task));
  }

  // The whole content of a buffer, and back.
  std::vector<std::byte> Read(const DeviceBuffer& buffer);
  void Write(const DeviceBuffer& buffer, std::span<const std::byte> content);

  std::vector<std::byte> RandomBytes(size_t size);
  size_t Random(size_t below) { return std::uniform_int_distribution<size_t>(0, below - 1)(random_); }

  // Disjoint pieces of [0, size), in any order; their gaps stay what they are.
  std::vector<std::pair<size_t, size_t>> RandomExtents(size_t size, size_t count, size_t longest);

 protected:
  Runtime runtime_{2};
  std::mt19937_64 random_{20261120};
  std::shared_ptr<Gpus> gpus_;
  std::shared_ptr<Device> device_;
};

class GpuTest : public GpuFixture, public testing::WithParamInterface<Driver> {
 public:
  void SetUp() override { Open(GetParam()); }

 protected:
  bool fake() const { return GetParam() == Driver::kFake; }

  // A function of the driver that applications call and Nacre does not; null: there is none.
  template <typename Function>
  Function* Symbol(const char* name) {
    void* library = dlopen(fake() ? FakeLibrary().c_str() : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    return reinterpret_cast<Function*>(dlsym(library, name));
  }
};

// The tests of the fake driver's knobs.
class FakeGpuTest : public GpuTest {};

std::string DriverName(const testing::TestParamInfo<Driver>& info);

}  // namespace nacre::gpu
