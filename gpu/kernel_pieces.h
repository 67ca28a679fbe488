// Types that host code and kernels agree on. Plain data; included by kernels.cu too.
#pragma once

#include <cstdint>

namespace nacre::gpu {

// A kernel works on a list of these, one warp each. For checksums they are runs of parts that follow each
// other, one block of warps each: one entry of the list, which the device fetches over PCIe, for eight sums.
struct KernelPiece {
  uint64_t address;  // in the device's memory
  uint64_t source;   // copies: host memory that the device reaches
  uint64_t length;   // at most kKernelPieceSize; of a run at most kPartsOfRun of these
};

inline constexpr uint32_t kKernelPieceSize = 4096;
inline constexpr uint32_t kWarpSize = 32;
inline constexpr uint32_t kWarpsOfBlock = 8;
inline constexpr uint32_t kPartsOfRun = kWarpsOfBlock;  // the sums of run i begin at i * kPartsOfRun

}  // namespace nacre::gpu
