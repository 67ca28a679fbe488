// How an RDMA device gets at the memory of another device (a GPU): registered as a dma-buf, else under its
// own addresses (peer memory). Drivers promise what they do not keep, so each pair of devices is tried out.
// Stateless; thread-safe.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "common/status.h"
#include "transport/memory_device.h"
#include "transport/verbs/domain.h"

namespace nacre::verbs {

enum class DeviceMechanism { kDmaBuf, kPeerMemory };  // best first

// "dma-buf", "peer memory".
std::string_view Name(DeviceMechanism mechanism);

// The result of a trial with a pair of devices.
struct DeviceVerdict {
  // ENOTSUP: by no mechanism; says for each that was tried what is missing.
  Status status;
  DeviceMechanism mechanism = DeviceMechanism::kDmaBuf;
  std::string reason;   // why not a better one; empty: there is none
  bool lasting = true;  // not if memory was short, which may change
};

// Registers memory of ours (MemoryDevice::TrialMemory) for a moment: that an application's buffer cannot be
// registered says nothing of its others.
DeviceVerdict TryDeviceMemory(const std::shared_ptr<Domain>& domain, MemoryDevice& device);

// For remote writes to exactly these bytes, under the device's own addresses. `exported` is their dma-buf: it
// is made if it is null and the mechanism wants one, and serves for registrations with other RDMA devices.
// ENOTSUP: the mechanism does not work here. ENOMEM: there is too much registered already.
StatusOr<std::unique_ptr<Registration>> RegisterBy(DeviceMechanism mechanism,
                                                   const std::shared_ptr<Domain>& domain,
                                                   MemoryDevice& device, std::span<std::byte> memory,
                                                   std::optional<DmaBuf>* exported);

}  // namespace nacre::verbs
