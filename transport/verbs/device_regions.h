// The memory of devices (GPUs) that was registered with a verbs transport. It is registered with an RDMA
// device when a call first names it there, and kept so while a region has it, but not beyond what the device
// allows (MemoryDevice::RdmaBudget): what has not been used for the longest time goes first. A dma-buf is
// made once for all RDMA devices, and counts once. Memory that was freed and is there again is told by its
// identity (MemoryDevice::BufferId). Registrations cover a region's bytes and nothing beside them. Whether
// and how a pair of devices works is tried once (device_memory.h); memory that cannot be registered all the
// same, that of a pool for instance, is refused by itself.
//
// Thread-safe. Registering may take seconds: nothing is locked meanwhile, and only those wait who want the
// same region; whoever must not wait asks FindKnown first. Counters: transport.verbs.device.*.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "transport/transport.h"
#include "transport/verbs/device_memory.h"
#include "transport/verbs/domain.h"

namespace nacre::verbs {

class DeviceRegions : public std::enable_shared_from_this<DeviceRegions> {
 public:
  // INVALID_ARGUMENT for a null pointer.
  StatusOr<std::shared_ptr<MemoryRegion>> Register(std::shared_ptr<MemoryDevice> device, std::byte* data,
                                                   size_t size);

  // Of a region made here; in use, and so not taken back, until the last copy is gone. ENOTSUP: the RDMA
  // device does not reach this memory, or cannot hold it too; says what was tried and what to do. EFAULT: it
  // was freed. NOT_FOUND: another transport's. UNAVAILABLE: the RDMA device has failed.
  StatusOr<std::shared_ptr<const Registration>> Find(const std::shared_ptr<Domain>& domain,
                                                     const MemoryRegion& region);

  // The same if it is registered already, so that nothing takes long; else null.
  std::shared_ptr<const Registration> FindKnown(const Domain& domain, const MemoryRegion& region);

  // Takes back what is registered with a domain, when it is not in use any more.
  void Forget(const Domain& domain);

 private:
  class Region;
  struct Room;
  struct Housed;  // a registration in a room
  struct Place {
    MemoryDevice* device = nullptr;
    std::byte* data = nullptr;
    size_t size = 0;

    auto operator<=>(const Place&) const = default;
    std::span<std::byte> memory() const { return {data, size}; }
  };
  struct Known {
    std::shared_ptr<Domain> domain;
    uint64_t buffer_id = 0;
    uint64_t used = 0;  // when, in finds
    std::shared_ptr<const Registration> registration;
    const Room* room = nullptr;  // that it is in

    bool in_use() const { return registration.use_count() > 1; }
  };
  struct Refused {
    const Domain* domain = nullptr;
    uint64_t buffer_id = 0;
    Status why;
  };
  struct Entry {
    int regions = 0;
    bool busy = false;  // being registered, with nothing locked: it stays where it is
    std::vector<Known> known;
    std::weak_ptr<Room> room;      // with a dma-buf, for whichever RDMA device is next
    std::vector<Refused> refused;  // for good: more room would not help
  };
  // The state of a device from its first use on. Does not keep the device, which the regions do: what is left
  // of a transport that was closed (links that end by and by) would keep a GPU's context with it.
  struct Device {
    std::weak_ptr<MemoryDevice> device;
    uint64_t budget = 0;  // 0: not asked yet
    std::shared_ptr<std::atomic<uint64_t>> registered = std::make_shared<std::atomic<uint64_t>>(0);  // bytes
    std::map<const Domain*, DeviceVerdict> verdicts;
  };
  using Entries = std::map<Place, Entry>;

  // The registration with the domain of memory with this identity; null: there is none.
  std::shared_ptr<const Registration> Use(Entry* entry, const Domain& domain, uint64_t buffer_id);
  // Why memory with this identity cannot be registered with the domain; OK: that is not known.
  static Status RefusalOf(Entry* entry, const Domain& domain, uint64_t buffer_id);
  void Remove(const Place& place);
  using Lock = std::unique_lock<std::mutex>;
  // These under the lock, which most of them let go of meanwhile; the entry is busy and has a region, which
  // keeps its device.
  StatusOr<std::shared_ptr<const Registration>> Add(const std::shared_ptr<Domain>& domain,
                                                    Entries::value_type* entry, uint64_t buffer_id,
                                                    Lock* lock);
  DeviceVerdict VerdictOf(const std::shared_ptr<Domain>& domain, MemoryDevice& memory, Device* device,
                          Lock* lock);
  StatusOr<std::shared_ptr<Room>> MakeRoom(const Place& place, const Device& device, uint64_t buffer_id,
                                           Lock* lock);
  static std::optional<uint64_t> LastUse(const Entry& entry, const Room* room);
  bool EvictOne(const MemoryDevice& device, Lock* lock);
  StatusOr<std::unique_ptr<Registration>> RegisterWith(const std::shared_ptr<Domain>& domain,
                                                       const Place& place, DeviceMechanism mechanism,
                                                       Room* room, bool* lasting, Lock* lock);

  std::mutex mutex_;
  std::condition_variable not_busy_;
  Entries entries_;
  std::map<MemoryDevice*, Device> devices_;
  uint64_t finds_ = 0;
};

}  // namespace nacre::verbs
