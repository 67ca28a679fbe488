// Our kernels (kernels.cu), loaded into one context. Immutable, hence thread-safe; the context must be
// current for the launches. Launches return at once, as everything in a stream.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "gpu/context.h"
#include "gpu/kernel_pieces.h"

namespace nacre::gpu {

class Kernels {
 public:
  // ENOTSUP with the reason: the build had no CUDA compiler, or the driver cannot use what it made.
  static StatusOr<std::shared_ptr<const Kernels>> Load(std::shared_ptr<Context> context);
  ~Kernels();
  Kernels(const Kernels&) = delete;
  Kernels& operator=(const Kernels&) = delete;

  // The lists, and the sums (kPartsOfRun for each run), in host memory that the device reaches.
  Status Crc32c(std::span<const KernelPiece> runs, uint32_t* sums, CudaStream stream) const;
  Status Zero(std::span<const KernelPiece> pieces, CudaStream stream) const;
  Status Copy(std::span<const KernelPiece> pieces, CudaStream stream) const;

 private:
  explicit Kernels(std::shared_ptr<Context> context) : context_(std::move(context)) {}
  Status LoadModule();
  Status Launch(CudaFunction function, size_t blocks, std::span<const KernelPiece> pieces, uint32_t* sums,
                CudaStream stream, const char* name) const;

  const std::shared_ptr<Context> context_;
  CudaModule module_ = nullptr;
  CudaFunction crc32c_ = nullptr;
  CudaFunction zero_ = nullptr;
  CudaFunction copy_ = nullptr;
  unsigned most_blocks_ = 1;
};

// The module as nvcc made it; empty if the build had no nvcc.
std::span<const char> KernelImage();

}  // namespace nacre::gpu
