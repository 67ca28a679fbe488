// The kernels of gpu/kernels.cu, done by the CPU in its own way: nothing of their arithmetic is shared.
#include <algorithm>
#include <cstring>
#include <string_view>

#include "common/crc32c.h"
#include "gpu/kernel_pieces.h"
#include "tests/gpu/fake_cuda/knobs.h"
#include "tests/gpu/fake_cuda/memory.h"
#include "tests/gpu/fake_cuda/streams.h"

struct KernelArguments {
  const nacre::gpu::KernelPiece* pieces = nullptr;
  uint32_t* sums = nullptr;
  uint32_t count = 0;
};

namespace nacre::fake_cuda {
namespace {

using gpu::KernelPiece;

// Runs the function on each piece. A kernel that goes astray leaves a device that is of no use any more.
template <typename Function>
void EachPiece(CUctx_st* context, const KernelArguments& arguments, uint64_t longest, Function function) {
  auto lock = GetMemory().Lock();
  if (!GetMemory().IsPinned(arguments.pieces, arguments.count * sizeof(KernelPiece))) {
    context->error = gpu::kCudaIllegalAddress;
    return;
  }
  for (uint32_t i = 0; i < arguments.count; ++i) {
    const KernelPiece& piece = arguments.pieces[i];
    std::byte* data = GetMemory().Alias(piece.address, piece.length);
    if (data == nullptr || piece.length > longest || !function(piece, data, i)) {
      context->error = gpu::kCudaIllegalAddress;
      return;
    }
  }
}

void RunCrc32c(CUctx_st* context, const KernelArguments& arguments) {
  const size_t sums = size_t{arguments.count} * gpu::kPartsOfRun;
  if (!GetMemory().IsPinned(arguments.sums, sums * sizeof(uint32_t))) {
    context->error = gpu::kCudaIllegalAddress;
    return;
  }
  constexpr uint64_t kLongest = gpu::kPartsOfRun * gpu::kKernelPieceSize;
  EachPiece(context, arguments, kLongest, [&](const KernelPiece& run, const std::byte* data, uint32_t i) {
    uint32_t* sum = arguments.sums + size_t{i} * gpu::kPartsOfRun;
    for (uint64_t at = 0; at < run.length; at += gpu::kKernelPieceSize)
      *sum++ = Crc32cPortable({data + at, std::min<uint64_t>(run.length - at, gpu::kKernelPieceSize)});
    return true;
  });
}

void RunZero(CUctx_st* context, const KernelArguments& arguments) {
  EachPiece(context, arguments, gpu::kKernelPieceSize,
            [](const KernelPiece& piece, std::byte* data, uint32_t) {
              std::memset(data, 0, piece.length);
              return true;
            });
}

void RunCopy(CUctx_st* context, const KernelArguments& arguments) {
  EachPiece(context, arguments, gpu::kKernelPieceSize,
            [](const KernelPiece& piece, std::byte* data, uint32_t) {
              const auto* source = reinterpret_cast<const void*>(piece.source);
              if (!GetMemory().IsPinned(source, piece.length)) return false;
              std::memcpy(data, source, piece.length);
              if (TakeDamage()) data[piece.length / 2] ^= std::byte{1};
              return true;
            });
}

CUfunc_st crc32c_function{RunCrc32c, true};
CUfunc_st zero_function{RunZero};
CUfunc_st copy_function{RunCopy};

}  // namespace

CUfunc_st* FindKernel(const char* name) {
  std::string_view wanted = name;
  if (wanted == "nacre_crc32c_runs") return &crc32c_function;
  if (wanted == "nacre_zero_pieces") return &zero_function;
  if (wanted == "nacre_copy_pieces") return &copy_function;
  return nullptr;
}

void Launch(CUfunc_st* function, void** arguments, CUstream_st* stream) {
  KernelArguments copied;
  copied.pieces = *static_cast<const KernelPiece**>(arguments[0]);
  if (function->has_sums) copied.sums = *static_cast<uint32_t**>(arguments[1]);
  copied.count = *static_cast<uint32_t*>(arguments[function->has_sums ? 2 : 1]);
  stream->Enqueue(Unit::kProcessors, [=] { function->run(stream->context, copied); });
}

}  // namespace nacre::fake_cuda
