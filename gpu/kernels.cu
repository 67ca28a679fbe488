// The kernels: one warp for each piece of a list (for checksums one block for each run of pieces), as many
// blocks as the device runs at once, each taking pieces in turn. The list and the sums lie in pinned host
// memory. The arithmetic is in kernel_lanes.h.
#include "gpu/kernel_lanes.h"

namespace nacre::gpu {
namespace {

constexpr uint32_t kThreads = kWarpsOfBlock * kWarpSize;

__constant__ const CrcConstants kConstants;

__device__ uint32_t Lane() { return threadIdx.x % kWarpSize; }

template <typename Function>
__device__ void EachPiece(const KernelPiece* pieces, uint32_t count, Function function) {
  uint32_t warp = blockIdx.x * kWarpsOfBlock + threadIdx.x / kWarpSize;
  for (uint32_t i = warp; i < count; i += gridDim.x * kWarpsOfBlock) function(pieces[i], i);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads)
    nacre_crc32c_runs(const KernelPiece* runs, uint32_t* sums, uint32_t count) {
  __shared__ uint32_t table[256 * kWarpSize];
  for (uint32_t byte = threadIdx.x / kWarpSize; byte < 256; byte += kWarpsOfBlock)
    table[byte * kWarpSize + Lane()] = kConstants.table[byte];
  uint32_t shift = kConstants.lane_shift[Lane()];
  __syncthreads();
  LaneTable mine{table + Lane(), kWarpSize};
  const uint32_t part = threadIdx.x / kWarpSize;
  for (uint32_t i = blockIdx.x; i < count; i += gridDim.x) {
    const KernelPiece piece = PartOfRun(runs[i], part);
    if (piece.length == 0) continue;
    uint32_t sum = CrcLane(mine, piece, Lane(), shift);
    for (uint32_t step = kWarpSize / 2; step > 0; step /= 2) sum ^= __shfl_xor_sync(~0u, sum, step);
    if (Lane() == 0) sums[i * kPartsOfRun + part] = ~sum;
  }
}

extern "C" __global__ void __launch_bounds__(kThreads)
    nacre_zero_pieces(const KernelPiece* pieces, uint32_t count) {
  EachPiece(pieces, count, [](const KernelPiece& piece, uint32_t) { ZeroLane(piece, Lane()); });
}

extern "C" __global__ void __launch_bounds__(kThreads)
    nacre_copy_pieces(const KernelPiece* pieces, uint32_t count) {
  EachPiece(pieces, count, [](const KernelPiece& piece, uint32_t) { CopyLane(piece, Lane()); });
}

}  // namespace nacre::gpu
