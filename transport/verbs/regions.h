// The memory that was registered with a verbs transport, host memory found by address. A region is registered
// with a device at its first use there, so memory costs nothing while no RDMA device is in use. Thread-safe.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <vector>

#include "transport/transport.h"
#include "transport/verbs/device_regions.h"
#include "transport/verbs/domain.h"

namespace nacre::verbs {

// What the device calls a region.
struct MemoryKeys {
  uint32_t local = 0;
  uint32_t remote = 0;       // opens nothing where the device has windows
  ibv_mr* region = nullptr;  // while the region lives
  // Of a device's memory: what keeps it registered, and the remote key as it is. Null for host memory.
  std::shared_ptr<const Registration> held;
};

class RegionTable : public std::enable_shared_from_this<RegionTable> {
 public:
  // INVALID_ARGUMENT for a null pointer. Regions may overlap.
  StatusOr<std::shared_ptr<MemoryRegion>> Register(std::byte* data, size_t size);
  // A device's memory, see DeviceRegions.
  StatusOr<std::shared_ptr<MemoryRegion>> RegisterDevice(std::shared_ptr<MemoryDevice> device,
                                                         std::byte* data, size_t size) {
    return devices_->Register(std::move(device), data, size);
  }

  // Of the region that holds these bytes. NOT_FOUND: none does. UNAVAILABLE: it cannot be registered with the
  // device.
  StatusOr<MemoryKeys> Find(const std::shared_ptr<Domain>& domain, const std::byte* data, size_t size);

  // The same of a call's memory, which may be a device's: then the errors are those of DeviceRegions::Find.
  StatusOr<MemoryKeys> FindSpan(const std::shared_ptr<Domain>& domain, const MemorySpan& span);

  // Registers all host memory there is with a device. UNAVAILABLE: some of it cannot be.
  Status RegisterAll(const std::shared_ptr<Domain>& domain);

  // Retires the domain and takes its registrations back; transfers that use them fail.
  void Forget(Domain& domain);

 private:
  class Region;
  struct Entry {
    size_t size = 0;
    std::vector<std::pair<std::shared_ptr<Domain>, std::unique_ptr<Registration>>> registrations;
  };
  using Entries = std::multimap<const std::byte*, Entry>;

  void Remove(Entries::iterator entry);
  Entries::iterator Locate(const std::byte* data, size_t size);
  // Under mutex_, exclusively.
  static StatusOr<MemoryKeys> Add(const std::shared_ptr<Domain>& domain, Entries::value_type* entry);
  static std::optional<MemoryKeys> FindIn(const Entry& entry, const Domain& domain);

  std::shared_mutex mutex_;
  Entries entries_;
  const std::shared_ptr<DeviceRegions> devices_ = std::make_shared<DeviceRegions>();
};

}  // namespace nacre::verbs
