// Options of the use of GPUs. Plain data.
#pragma once

#include <cstdint>
#include <string>

namespace nacre::gpu {

struct Options {
  // The driver library. Empty: what NACRE_CUDA_LIBRARY names, else libcuda.so.1.
  std::string library;
  // Pinned host memory for each GPU at most; it is allocated as it is needed, in slots of 1 MiB.
  uint64_t staging_bytes = 64u << 20;
  // Whether to use our kernels. Without them checksums are made by the CPU from copies.
  bool kernels = true;
  // Where the kernel shows its modules and devices.
  std::string sysfs = "/sys";
};

}  // namespace nacre::gpu
