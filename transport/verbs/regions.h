// The memory that was registered with a verbs transport, found by address. A region is registered with a
// device at its first use there, so memory costs nothing while no RDMA device is in use. Thread-safe.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <vector>

#include "transport/transport.h"
#include "transport/verbs/domain.h"

namespace nacre::verbs {

// What the device calls a region.
struct MemoryKeys {
  uint32_t local = 0;
  uint32_t remote = 0;       // opens nothing where the device has windows
  ibv_mr* region = nullptr;  // while the region lives
};

class RegionTable : public std::enable_shared_from_this<RegionTable> {
 public:
  // INVALID_ARGUMENT for a null pointer. Regions may overlap.
  StatusOr<std::shared_ptr<MemoryRegion>> Register(std::byte* data, size_t size);

  // Of the region that holds these bytes. NOT_FOUND: none does. UNAVAILABLE: it cannot be registered with the
  // device.
  StatusOr<MemoryKeys> Find(const std::shared_ptr<Domain>& domain, const std::byte* data, size_t size);

  // Registers all there is with a device. UNAVAILABLE: some of it cannot be.
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
};

}  // namespace nacre::verbs
