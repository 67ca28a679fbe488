// GPU memory as an application has it: the driver, opened by name, and memory from it. With the driver that
// needs no GPU (tests/gpu/fake_cuda), or with a real one: see Driver::Library. Not thread-safe.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "tests/daemon/program.h"

namespace nacre::test {

inline constexpr char kDeviceCanary = '\xA5';

// The driver as an application has it. Never closed.
class Driver {
 public:
  // With NACRE_TEST_CUDA=libcuda.so.1 it is the machine's own.
  static std::string Library() {
    const char* named = std::getenv("NACRE_TEST_CUDA");
    return named == nullptr ? BinDirectory() + "/libnacre-fake-cuda.so" : named;
  }
  static Driver& Get() {
    static Driver driver;
    return driver;
  }

  template <typename Function>
  Function* Find(const char* name) {
    void* found = ::dlsym(library_, name);
    if (found == nullptr) ADD_FAILURE() << "no " << name;
    return reinterpret_cast<Function*>(found);
  }

  // Makes one GPU's context the thread's.
  void Use(int gpu) {
    void* context = nullptr;
    ASSERT_EQ(Find<int(void**, int)>("cuDevicePrimaryCtxRetain")(&context, gpu), 0);
    ASSERT_EQ(Find<int(void*)>("cuCtxPushCurrent_v2")(context), 0);
  }

 private:
  Driver() {
    // Streams share one hardware queue, as with CUDA_DEVICE_MAX_CONNECTIONS=1.
    ::setenv("NACRE_FAKE_CUDA", "devices=2,queues=1", 1);
    ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
    library_ = ::dlopen(Library().c_str(), RTLD_NOW);
    if (library_ == nullptr) {
      ADD_FAILURE() << ::dlerror();
      return;
    }
    EXPECT_EQ(Find<int(unsigned)>("cuInit")(0), 0);
  }

  void* library_ = nullptr;
};

// Device memory full of canaries.
class DeviceMemory {
 public:
  explicit DeviceMemory(size_t size) : size_(size) {
    EXPECT_EQ(driver_.Find<int(uint64_t*, size_t)>("cuMemAlloc_v2")(&address_, size), 0);
    const auto fill = driver_.Find<int(uint64_t, unsigned char, size_t, void*)>("cuMemsetD8Async");
    EXPECT_EQ(fill(address_, static_cast<unsigned char>(kDeviceCanary), size, nullptr), 0);
    Synchronize();
  }
  ~DeviceMemory() { Free(); }
  void Free() {
    if (address_ == 0) return;
    EXPECT_EQ(driver_.Find<int(uint64_t)>("cuMemFree_v2")(address_), 0);
    address_ = 0;
  }

  void* data() const { return reinterpret_cast<void*>(address_); }
  size_t size() const { return size_; }
  std::string bytes() const {
    std::string bytes(size_, '\0');
    const auto copy = driver_.Find<int(void*, uint64_t, size_t, void*)>("cuMemcpyDtoHAsync_v2");
    EXPECT_EQ(copy(bytes.data(), address_, size_, nullptr), 0);
    Synchronize();
    return bytes;
  }
  void Set(const std::string& bytes) {
    const auto copy = driver_.Find<int(uint64_t, const void*, size_t, void*)>("cuMemcpyHtoDAsync_v2");
    EXPECT_EQ(copy(address_, bytes.data(), bytes.size(), nullptr), 0);
    Synchronize();
  }

 private:
  void Synchronize() const { EXPECT_EQ(driver_.Find<int(void*)>("cuStreamSynchronize")(nullptr), 0); }

  Driver& driver_ = Driver::Get();
  const size_t size_;
  uint64_t address_ = 0;
};

// `Fixture` (of api_fixture.h) with libnacre and the test on that driver.
template <typename Fixture>
class WithDriver : public Fixture {
 protected:
  static void SetUpTestSuite() {
    Fixture::SetUpTestSuite();
    ::setenv("NACRE_CUDA_LIBRARY", Driver::Library().c_str(), 1);
    Driver::Get().Use(0);
  }
  static void TearDownTestSuite() {
    ::unsetenv("NACRE_CUDA_LIBRARY");
    Fixture::TearDownTestSuite();
  }
};

}  // namespace nacre::test
