// Zeros in pinned host memory, from which memory of a GPU is zeroed where no kernel and no memset may be
// enqueued (stream_waits.h). For one thread, on which the context is current.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <span>

#include "gpu/context.h"

namespace nacre::gpu {

class PinnedZeros {
 public:
  explicit PinnedZeros(std::shared_ptr<Context> context) : context_(std::move(context)) {}
  ~PinnedZeros() {
    if (memory_ != nullptr) context_->cuda()->MemFreeHost(memory_);
  }
  PinnedZeros(const PinnedZeros&) = delete;
  PinnedZeros& operator=(const PinnedZeros&) = delete;

  // The same bytes each time, allocated by the first call. ENOMEM.
  StatusOr<std::span<std::byte>> Get() {
    if (memory_ == nullptr) {
      RETURN_IF_ERROR(context_->cuda().Check(
          context_->cuda()->MemHostAlloc(&memory_, kSize, kCudaHostAllocPortable), "cuMemHostAlloc"));
      std::memset(memory_, 0, kSize);
    }
    return std::span(static_cast<std::byte*>(memory_), kSize);
  }

 private:
  static constexpr size_t kSize = 256 << 10;

  const std::shared_ptr<Context> context_;
  void* memory_ = nullptr;
};

}  // namespace nacre::gpu
