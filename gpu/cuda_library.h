// The driver library, opened at run time: a table of its functions, its version, its errors as Status.
// Immutable after loading, hence thread-safe; never unloaded (the driver does not stand it).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "common/status.h"
#include "gpu/cuda_abi.h"

namespace nacre::gpu {

// The oldest driver that can serve us: CUDA 11.3 has the look-up of functions by version.
constexpr int kOldestDriver = 11030;

class CudaLibrary {
 public:
  // `path` as in Options::library. Loads and initialises. ENOENT, ENOSYS (too old), ENODEV with what to do.
  static StatusOr<std::shared_ptr<const CudaLibrary>> Load(std::string path);

  const CudaFunctions* operator->() const { return &functions_; }
  int driver_version() const { return driver_version_; }
  // The library that belongs to it and has NVML's functions.
  std::string nvml_path() const;

  // OK, or EIO: "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory"; ENOMEM for that one.
  Status Check(CudaResult result, std::string_view what) const;

  // EOWNERDEAD in a process that was forked off after the loading.
  Status CheckProcess() const;

 private:
  explicit CudaLibrary(std::string path);
  Status Open();
  Status FindFunctions();
  Status Initialize();

  const std::string path_;
  const pid_t pid_;
  const uint64_t forks_;  // ForksSoFar when it was loaded
  void* handle_ = nullptr;
  CudaFunctions functions_;
  int driver_version_ = 0;
};

// "13.0" for 13000.
std::string VersionText(int version);

}  // namespace nacre::gpu
