// Asks CUDA about an address. Stateless; thread-safe.
#pragma once

#include <cstdint>
#include <span>

#include "common/status.h"
#include "gpu/context.h"

namespace nacre::gpu {

struct PointerInfo {
  unsigned memory_type = kCudaMemoryUnknown;
  bool managed = false;
  bool whole = false;  // cuMemAlloc made it: its range is all of it, whatever lies beside
  int ordinal = -1;
  CudaContext context = nullptr;  // that it was allocated in; null: none in particular (mapped memory, pools)
  uint64_t start = 0;             // of its allocation
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

// EINVAL unless the memory, which is of the context's device, is the context's or no context's in particular.
// CUDA promises no address of another one to our kernels.
Status CheckContext(const PointerInfo& info, uint64_t address, const Context& context);
// The error that CheckContext returns for memory of another context.
Status OtherContext(const PointerInfo& info, uint64_t address);

// Whether kernels may touch these spans of a device's memory: a kernel that follows a freed address takes the
// whole context with it. Remembers the last allocation, because most spans lie in the same.
class SpanChecker {
 public:
  explicit SpanChecker(const Context& context) : context_(context) {}

  // EFAULT: no memory of a GPU, or not all of it. EINVAL: another GPU's, or another context's.
  Status Check(uint64_t address, uint64_t size);
  // The result of the last Check that was OK.
  const PointerInfo& last() const { return last_; }

 private:
  const Context& context_;
  PointerInfo last_;
};

}  // namespace nacre::gpu
