// Asks CUDA about an address. Stateless; thread-safe.
#pragma once

#include <cstdint>
#include <span>

#include "common/status.h"
#include "gpu/cuda_library.h"

namespace nacre::gpu {

struct PointerInfo {
  unsigned memory_type = kCudaMemoryUnknown;
  bool managed = false;
  bool whole = false;  // cuMemAlloc made it: its range is all of it, whatever lies beside
  int ordinal = -1;
  uint64_t start = 0;  // of its allocation
  uint64_t size = 0;
  uint64_t buffer_id = 0;
  uint64_t on_device = 0;  // where devices find it

  uint64_t end() const { return start + size; }
};

// An address that CUDA does not know has the type kCudaMemoryUnknown; that is no error.
StatusOr<PointerInfo> QueryPointer(const CudaLibrary& cuda, uint64_t address);

// The info of the first byte. Memory that an allocator of virtual memory has put together (PyTorch's
// expandable segments) consists of mappings: `size` is widened to those that hold the rest of the span, and
// `buffer_id` is made of all of theirs. The span may still end outside.
StatusOr<PointerInfo> QuerySpan(const CudaLibrary& cuda, uint64_t address, uint64_t size);

// Whether kernels may touch these spans of a device's memory: a kernel that follows a freed address takes the
// whole context with it. Remembers the last allocation, because most spans lie in the same.
class SpanChecker {
 public:
  SpanChecker(const CudaLibrary& cuda, int ordinal) : cuda_(cuda), ordinal_(ordinal) {}

  Status Check(uint64_t address, uint64_t size);
  // The result of the last Check that was OK.
  const PointerInfo& last() const { return last_; }

 private:
  const CudaLibrary& cuda_;
  const int ordinal_;
  PointerInfo last_;
};

}  // namespace nacre::gpu
