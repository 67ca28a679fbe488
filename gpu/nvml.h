// The little that is asked of NVML (NVIDIA's management library), which is opened at run time. Thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "common/status.h"

namespace nacre::gpu {

// How much of a GPU's memory PCIe can show to other devices at once (BAR1). ENOENT: the library is not there;
// EIO: it does not tell.
StatusOr<uint64_t> Bar1Bytes(const std::string& library, const std::string& pci_bus_id);

}  // namespace nacre::gpu
