// Where the examples read into: host memory, or a GPU's, through the few functions of the CUDA driver that
// this takes, opened at run time so that the examples build without CUDA. One thread.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace example {

// The driver's first GPU. Ends the program with a message if there is none.
class Gpu {
 public:
  static Gpu& Get() {
    static Gpu gpu;
    return gpu;
  }

  void* Allocate(size_t size) {
    uint64_t address = 0;
    Check(allocate_(&address, size), "cuMemAlloc");
    return reinterpret_cast<void*>(address);
  }
  void Free(void* memory) { free_(reinterpret_cast<uint64_t>(memory)); }
  void CopyOut(void* to, const void* from, size_t size) {
    Check(copy_out_(to, reinterpret_cast<uint64_t>(from), size, nullptr), "cuMemcpyDtoHAsync");
    Check(synchronize_(nullptr), "cuStreamSynchronize");
  }

 private:
  Gpu() {
    const char* named = std::getenv("NACRE_CUDA_LIBRARY");  // the tests' fake one
    library_ = ::dlopen(named == nullptr ? "libcuda.so.1" : named, RTLD_NOW);
    if (library_ == nullptr) Fail(::dlerror());
    int device = 0;
    void* context = nullptr;
    Check(Find<int(unsigned)>("cuInit")(0), "cuInit");
    Check(Find<int(int*, int)>("cuDeviceGet")(&device, 0), "cuDeviceGet");
    Check(Find<int(void**, int)>("cuDevicePrimaryCtxRetain")(&context, device), "cuDevicePrimaryCtxRetain");
    Check(Find<int(void*)>("cuCtxPushCurrent_v2")(context), "cuCtxPushCurrent");
    allocate_ = Find<int(uint64_t*, size_t)>("cuMemAlloc_v2");
    free_ = Find<int(uint64_t)>("cuMemFree_v2");
    copy_out_ = Find<int(void*, uint64_t, size_t, void*)>("cuMemcpyDtoHAsync_v2");
    synchronize_ = Find<int(void*)>("cuStreamSynchronize");
  }

  [[noreturn]] static void Fail(const std::string& why) {
    std::fprintf(stderr, "no GPU memory: %s\n", why.c_str());
    std::exit(1);
  }
  static void Check(int result, const char* what) {
    if (result != 0) Fail(std::string(what) + " failed with " + std::to_string(result));
  }
  template <typename Function>
  Function* Find(const char* name) {
    void* found = ::dlsym(library_, name);
    if (found == nullptr) Fail(std::string("the driver has no ") + name);
    return reinterpret_cast<Function*>(found);
  }

  void* library_ = nullptr;
  int (*allocate_)(uint64_t*, size_t) = nullptr;
  int (*free_)(uint64_t) = nullptr;
  int (*copy_out_)(void*, uint64_t, size_t, void*) = nullptr;
  int (*synchronize_)(void*) = nullptr;
};

class Memory {
 public:
  Memory(size_t size, bool on_gpu)
      : size_(size), on_gpu_(on_gpu), data_(on_gpu ? Gpu::Get().Allocate(size) : std::malloc(size)) {
    if (data_ == nullptr) std::abort();
  }
  ~Memory() {
    if (on_gpu_) {
      Gpu::Get().Free(data_);
    } else {
      std::free(data_);
    }
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  void* data() const { return data_; }
  size_t size() const { return size_; }

  // To look at.
  std::vector<unsigned char> Bytes(size_t offset, size_t length) const {
    std::vector<unsigned char> bytes(length);
    const char* from = static_cast<const char*>(data_) + offset;
    if (on_gpu_ && length > 0) {
      Gpu::Get().CopyOut(bytes.data(), from, length);
    } else if (length > 0) {
      std::memcpy(bytes.data(), from, length);
    }
    return bytes;
  }

 private:
  const size_t size_;
  const bool on_gpu_;
  void* const data_;
};

// Whether the last word of the command line is --gpu, which is taken off.
inline bool TakeGpuFlag(int* argc, char** argv) {
  if (*argc < 2 || std::strcmp(argv[*argc - 1], "--gpu") != 0) return false;
  --*argc;
  return true;
}

}  // namespace example
