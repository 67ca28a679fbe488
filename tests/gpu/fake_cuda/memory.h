// The memory that the fake driver knows: of its devices, and pinned host memory. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "gpu/cuda_abi.h"

namespace nacre::fake_cuda {

struct Allocation {
  uint64_t address = 0;  // inaccessible
  size_t size = 0;
  std::byte* alias = nullptr;
  int fd = -1;
  CUctx_st* context = nullptr;
  int segments = 1;
  uint64_t first_buffer_id = 0;  // of the first segment; the others follow
};

// A part of an allocation that CUDA would call an allocation.
struct Range {
  uint64_t address = 0;
  size_t size = 0;
  unsigned type = gpu::kCudaMemoryUnknown;
  int ordinal = -1;
  uint64_t buffer_id = 0;
  bool whole = false;  // no segment
  CUctx_st* context = nullptr;
};

class Memory {
 public:
  gpu::CudaResult Allocate(CUctx_st* context, size_t size, uint64_t* address);
  gpu::CudaResult Free(uint64_t address);
  void FreeAll(const CUctx_st* context);  // what ends with its context
  gpu::CudaResult AllocatePinned(size_t size, void** data);
  gpu::CudaResult FreePinned(void* data);
  gpu::CudaResult Register(void* data, size_t size, bool read_only);
  gpu::CudaResult Unregister(void* data);

  Range Find(uint64_t address);
  // Where bytes of device memory can be touched; null unless all of them are of one allocation. It may be
  // freed meanwhile: for a moment's use by a device, not by a test.
  std::byte* Alias(uint64_t address, size_t size);
  bool IsPinned(const void* data, size_t size);
  // Whether the bytes lie neither in one pinned range nor outside of all: no copy takes such.
  bool IsPartlyPinned(const void* data, size_t size);
  gpu::CudaResult ExportDmaBuf(uint64_t address, size_t size, int* fd);

  // Holds off frees while a device works.
  std::unique_lock<std::recursive_mutex> Lock() { return std::unique_lock(mutex_); }

  long allocations();
  long pinned();
  long registered();

 private:
  struct Pinned {
    size_t size = 0;
    bool allocated = false;  // else registered
  };

  const Allocation* FindAllocation(uint64_t address, size_t size);
  uint64_t ReusableAddress(size_t mapped);
  long CountPinned(bool allocated);

  std::recursive_mutex mutex_;
  std::map<uint64_t, Allocation> allocations_;
  std::map<uint64_t, Pinned> pinned_;
  std::map<size_t, uint64_t> freed_;  // by mapped size, the newest
  uint64_t next_buffer_id_ = 1;
  size_t used_ = 0;
  size_t used_pinned_ = 0;
};

Memory& GetMemory();

}  // namespace nacre::fake_cuda
