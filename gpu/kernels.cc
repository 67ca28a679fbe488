#include "gpu/kernels.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cerrno>

namespace nacre::gpu {
namespace {

constexpr unsigned kBlocksOfMultiprocessor = 6;  // as many as the tables leave room for

size_t BlocksOf(std::span<const KernelPiece> pieces) {
  return (pieces.size() + kWarpsOfBlock - 1) / kWarpsOfBlock;
}

}  // namespace

StatusOr<std::shared_ptr<const Kernels>> Kernels::Load(std::shared_ptr<Context> context) {
  if (KernelImage().empty())
    return ErrnoError(EOPNOTSUPP, "this Nacre was built without a CUDA compiler: there are no kernels");
  UseContext use(*context);
  RETURN_IF_ERROR(use.status());
  std::shared_ptr<Kernels> kernels(new Kernels(std::move(context)));
  if (Status status = kernels->LoadModule(); !status.ok())
    return ErrnoError(EOPNOTSUPP, absl::StrCat("the driver cannot load the kernels: ", status.message()));
  return kernels;
}

Status Kernels::LoadModule() {
  const CudaLibrary& cuda = context_->cuda();
  RETURN_IF_ERROR(cuda.Check(cuda->ModuleLoadData(&module_, KernelImage().data()), "cuModuleLoadData"));
  for (auto [function, name] :
       {std::pair{&crc32c_, "nacre_crc32c_runs"}, std::pair{&zero_, "nacre_zero_pieces"},
        std::pair{&copy_, "nacre_copy_pieces"}})
    RETURN_IF_ERROR(cuda.Check(cuda->ModuleGetFunction(function, module_, name), name));
  int multiprocessors = 1;
  RETURN_IF_ERROR(
      cuda.Check(cuda->DeviceGetAttribute(&multiprocessors, kCudaMultiprocessors, context_->ordinal()),
                 "cuDeviceGetAttribute"));
  most_blocks_ = static_cast<unsigned>(multiprocessors) * kBlocksOfMultiprocessor;
  return OkStatus();
}

Kernels::~Kernels() {
  if (module_ == nullptr || !context_->Usable()) return;
  UseContext use(*context_);
  if (use.status().ok()) context_->cuda()->ModuleUnload(module_);
}

Status Kernels::Launch(CudaFunction function, size_t blocks, std::span<const KernelPiece> pieces,
                       uint32_t* sums, CudaStream stream, const char* name) const {
  const KernelPiece* list = pieces.data();
  auto count = static_cast<uint32_t>(pieces.size());
  void* with_sums[] = {&list, &sums, &count};
  void* without_sums[] = {&list, &count};
  const auto grid = static_cast<unsigned>(std::min<size_t>(blocks, most_blocks_));
  const CudaLibrary& cuda = context_->cuda();
  return cuda.Check(cuda->LaunchKernel(function, grid, 1, 1, kWarpsOfBlock * kWarpSize, 1, 1, 0, stream,
                                       sums != nullptr ? with_sums : without_sums, nullptr),
                    name);
}

Status Kernels::Crc32c(std::span<const KernelPiece> runs, uint32_t* sums, CudaStream stream) const {
  return Launch(crc32c_, runs.size(), runs, sums, stream, "cuLaunchKernel(nacre_crc32c_runs)");
}
Status Kernels::Zero(std::span<const KernelPiece> pieces, CudaStream stream) const {
  return Launch(zero_, BlocksOf(pieces), pieces, nullptr, stream, "cuLaunchKernel(nacre_zero_pieces)");
}
Status Kernels::Copy(std::span<const KernelPiece> pieces, CudaStream stream) const {
  return Launch(copy_, BlocksOf(pieces), pieces, nullptr, stream, "cuLaunchKernel(nacre_copy_pieces)");
}

}  // namespace nacre::gpu
