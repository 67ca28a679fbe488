// The memory that was registered with a verbs transport, host memory found by address. A region is registered
// with a device at its first use there, so memory costs nothing while no RDMA device is in use, and memory
// that cannot be registered is refused to the calls that name it, not to others. Registering may take
// seconds: nothing is locked meanwhile, and only those wait who want the same region. Thread-safe.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <vector>

#include "transport/transport.h"
#include "transport/verbs/device_regions.h"
#include "transport/verbs/domain.h"

namespace nacre::verbs {

// The keys by which the device knows a region.
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
  // Memory of this process's own making, which any device must take (RegisterOwn). The region keeps it.
  std::shared_ptr<MemoryRegion> RegisterShared(std::shared_ptr<SharedMemory> memory);
  // A device's memory, see DeviceRegions.
  StatusOr<std::shared_ptr<MemoryRegion>> RegisterDevice(std::shared_ptr<MemoryDevice> device,
                                                         std::byte* data, size_t size) {
    return devices_->Register(std::move(device), data, size);
  }

  // Of the region that holds these bytes. NOT_FOUND: none does. ENOTSUP: it cannot be registered with the
  // device; that was tried once. UNAVAILABLE: the device has failed.
  StatusOr<MemoryKeys> Find(const std::shared_ptr<Domain>& domain, const std::byte* data, size_t size);

  // The same of a call's memory, which may be a device's: then the errors are those of DeviceRegions::Find.
  StatusOr<MemoryKeys> FindSpan(const std::shared_ptr<Domain>& domain, const MemorySpan& span);
  // The same without registering anything, which may take seconds; none: it would have to be.
  std::optional<StatusOr<MemoryKeys>> FindKnownSpan(const Domain& domain, const MemorySpan& span);

  // Registers the process's own memory with a device, before that is used for anything: if it cannot be,
  // because memory may not be locked for instance, the device is of no use to a client.
  Status RegisterOwn(const std::shared_ptr<Domain>& domain);
  // Returns what RegisterOwn would, if that need not register anything first; else none.
  std::optional<Status> FindOwn(const Domain& domain);
  bool HasOwn();

  // Retires the domain and takes its registrations back; transfers that use them fail.
  void Forget(Domain& domain);

 private:
  class Region;
  struct Known {  // of a region and a device
    std::shared_ptr<Domain> domain;
    std::unique_ptr<Registration> registration;  // null: it was refused
    Status refusal;
  };
  struct Entry {
    size_t size = 0;
    bool own = false;
    bool busy = false;  // being registered, with nothing locked: it stays where it is
    std::vector<Known> known;
  };
  using Entries = std::multimap<const std::byte*, Entry>;

  std::shared_ptr<MemoryRegion> Insert(std::byte* data, size_t size, std::shared_ptr<SharedMemory> own);
  void Remove(Entries::iterator entry);
  Entries::iterator Locate(const std::byte* data, size_t size);
  // Under the lock, which is free while the region is being registered. The entry must not be busy.
  StatusOr<MemoryKeys> Add(const std::shared_ptr<Domain>& domain, Entries::iterator entry,
                           std::unique_lock<std::shared_mutex>* lock);
  static bool IsOwn(const Entry& entry) { return entry.own && entry.size > 0; }
  static std::optional<StatusOr<MemoryKeys>> FindIn(const Entry& entry, const Domain& domain);
  std::optional<StatusOr<MemoryKeys>> FindKnown(const Domain& domain, const std::byte* data, size_t size);

  std::shared_mutex mutex_;
  std::condition_variable_any not_busy_;
  Entries entries_;
  const std::shared_ptr<DeviceRegions> devices_ = std::make_shared<DeviceRegions>();
};

}  // namespace nacre::verbs
