// What host code and kernels agree on. Plain data; included by kernels.cu too.
#pragma once

#include <cstdint>

namespace nacre::gpu {

// A kernel works on a list of these, one warp each.
struct KernelPiece {
  uint64_t address;  // in the device's memory
  uint64_t source;   // copies: host memory that the device reaches
  uint64_t length;   // at most kKernelPieceSize
};

inline constexpr uint32_t kKernelPieceSize = 4096;
inline constexpr uint32_t kWarpSize = 32;
inline constexpr uint32_t kWarpsOfBlock = 8;

}  // namespace nacre::gpu
