#include "transport/verbs/device_regions.h"

#include <absl/strings/str_format.h>

#include <algorithm>
#include <cerrno>

#include "common/log.h"
#include "common/metrics.h"

namespace nacre::verbs {
namespace {

constexpr uint64_t kGpuPage = 64 << 10;  // what is mapped for PCIe is a multiple of it

struct DeviceRegionCounters {
  Counter& cached = GetCounter("transport.verbs.device.registrations");  // now
  Counter& hits = GetCounter("transport.verbs.device.hits");
  Counter& evicted = GetCounter("transport.verbs.device.evicted");
  Counter& stale = GetCounter("transport.verbs.device.stale");  // of memory that was freed meanwhile
  Counter& refused = GetCounter("transport.verbs.device.refused");
};

DeviceRegionCounters& DeviceCount() {
  static DeviceRegionCounters counters;
  return counters;
}

uint64_t MappedBytes(std::span<std::byte> memory) {
  const auto begin = reinterpret_cast<uint64_t>(memory.data());
  const uint64_t end = begin + memory.size();
  return (end + kGpuPage - 1) / kGpuPage * kGpuPage - begin / kGpuPage * kGpuPage;
}

}  // namespace

class DeviceRegions::Region : public MemoryRegion {
 public:
  Region(std::shared_ptr<DeviceRegions> regions, std::shared_ptr<MemoryDevice> device, const Place& place)
      : MemoryRegion(place.data, place.size),
        regions_(std::move(regions)),
        device_(std::move(device)),
        place_(place) {}
  ~Region() override { regions_->Remove(place_); }
  const std::shared_ptr<MemoryDevice>& device() const override { return device_; }

 private:
  const std::shared_ptr<DeviceRegions> regions_;
  const std::shared_ptr<MemoryDevice> device_;
  const Place place_;
};

// A registration, and the room that it takes until it is gone.
struct DeviceRegions::Charged {
  Charged(std::unique_ptr<Registration> made, std::shared_ptr<std::atomic<uint64_t>> registered,
          uint64_t bytes)
      : registration(std::move(made)), registered(std::move(registered)), bytes(bytes) {
    *this->registered += bytes;
    DeviceCount().cached.Add();
  }
  ~Charged() {
    registration.reset();
    *registered -= bytes;
    DeviceCount().cached.Add(-1);
  }

  std::unique_ptr<Registration> registration;
  const std::shared_ptr<std::atomic<uint64_t>> registered;
  const uint64_t bytes;
};

StatusOr<std::shared_ptr<MemoryRegion>> DeviceRegions::Register(std::shared_ptr<MemoryDevice> device,
                                                                std::byte* data, size_t size) {
  if (data == nullptr) return ErrnoError(EINVAL, "cannot register device memory at a null address");
  const Place place{device.get(), data, size};
  {
    std::lock_guard lock(mutex_);
    ++entries_[place].regions;
    Device& known = devices_[device.get()];
    if (known.device == nullptr) known.device = device;
  }
  return std::make_shared<Region>(shared_from_this(), std::move(device), place);
}

void DeviceRegions::Remove(const Place& place) {
  std::lock_guard lock(mutex_);
  auto found = entries_.find(place);
  if (--found->second.regions == 0) entries_.erase(found);
}

StatusOr<std::shared_ptr<const Registration>> DeviceRegions::Find(const std::shared_ptr<Domain>& domain,
                                                                  const MemoryRegion& region) {
  const Place place{region.device().get(), region.data(), region.size()};
  ASSIGN_OR_RETURN(const uint64_t buffer_id, region.device()->BufferId(place.memory()));
  std::lock_guard lock(mutex_);
  auto entry = entries_.find(place);
  if (entry == entries_.end()) return absl::NotFoundError("device memory that is not registered");
  std::vector<Known>& known = entry->second.known;
  const size_t before = known.size();
  std::erase_if(known, [&](const Known& each) { return each.buffer_id != buffer_id; });
  DeviceCount().stale.Add(static_cast<int64_t>(before - known.size()));
  for (Known& each : known) {
    if (each.domain != domain) continue;
    each.used = ++finds_;
    DeviceCount().hits.Add();
    return each.registration;
  }
  auto added = Add(domain, &*entry, buffer_id);
  if (!added.ok()) DeviceCount().refused.Add();
  return added;
}

StatusOr<std::shared_ptr<const Registration>> DeviceRegions::Add(const std::shared_ptr<Domain>& domain,
                                                                 Entries::value_type* entry,
                                                                 uint64_t buffer_id) {
  if (domain->retired()) return absl::UnavailableError("the RDMA device has failed");
  const std::span<std::byte> memory = entry->first.memory();
  Device& device = DeviceOf(*entry->first.device);
  const DeviceVerdict& verdict = VerdictOf(domain, &device, memory);
  RETURN_IF_ERROR(verdict.status);
  const uint64_t bytes = MappedBytes(memory);
  RETURN_IF_ERROR(MakeRoom(device, bytes));
  ASSIGN_OR_RETURN(std::unique_ptr<Registration> made,
                   RegisterWith(domain, device, verdict.mechanism, memory));
  auto charged = std::make_shared<const Charged>(std::move(made), device.registered, bytes);
  std::shared_ptr<const Registration> registration(charged, charged->registration.get());
  charged.reset();  // so that uses can be counted
  entry->second.known.push_back({domain, buffer_id, ++finds_, registration});
  return registration;
}

DeviceRegions::Device& DeviceRegions::DeviceOf(MemoryDevice& device) {
  Device& known = devices_[&device];
  if (known.budget == 0) known.budget = std::max<uint64_t>(device.RdmaBudget(), 1);
  return known;
}

const DeviceVerdict& DeviceRegions::VerdictOf(const std::shared_ptr<Domain>& domain, Device* device,
                                              std::span<std::byte> memory) {
  auto found = device->verdicts.find(domain.get());
  if (found != device->verdicts.end()) return found->second;
  const DeviceVerdict& verdict =
      device->verdicts.emplace(domain.get(), TryDeviceMemory(domain, *device->device, memory)).first->second;
  if (!verdict.status.ok()) {
    LogWarning("data plane: %s; it is copied there from host memory instead", verdict.status.message());
  } else {
    LogInfo("data plane: RDMA device %s writes into %s (%s)%s%s", domain->device(),
            device->device->name(), AbslView(Name(verdict.mechanism)), verdict.reason.empty() ? "" : ", not ",
            verdict.reason);
  }
  return verdict;
}

Status DeviceRegions::MakeRoom(const Device& device, uint64_t bytes) {
  if (bytes > device.budget) {
    return ErrnoError(ENOTSUP,
                      absl::StrFormat("a buffer of %d bytes of %s cannot be registered with an RDMA device: "
                                      "%d are the most (80 %% of its BAR1); use smaller buffers",
                                      bytes, device.device->name(), device.budget));
  }
  while (*device.registered + bytes > device.budget) {
    if (EvictOne(*device.device)) continue;
    return ErrnoError(
        ENOTSUP, absl::StrFormat("%d bytes of %s are registered with RDMA devices and in use just now; "
                                 "%d more are beyond the %d that may be (80 %% of its BAR1)",
                                 device.registered->load(), device.device->name(), bytes, device.budget));
  }
  return OkStatus();
}

// False: all are in use.
bool DeviceRegions::EvictOne(const MemoryDevice& device) {
  std::vector<Known>* where = nullptr;
  size_t oldest = 0;
  for (auto& [place, entry] : entries_) {
    for (size_t i = 0; place.device == &device && i < entry.known.size(); ++i) {
      if (entry.known[i].in_use()) continue;
      if (where != nullptr && entry.known[i].used > (*where)[oldest].used) continue;
      where = &entry.known;
      oldest = i;
    }
  }
  if (where == nullptr) return false;
  where->erase(where->begin() + static_cast<ptrdiff_t>(oldest));
  DeviceCount().evicted.Add();
  return true;
}

// BAR1 may be short before the budget is: others use it too.
StatusOr<std::unique_ptr<Registration>> DeviceRegions::RegisterWith(const std::shared_ptr<Domain>& domain,
                                                                    const Device& device,
                                                                    DeviceMechanism mechanism,
                                                                    std::span<std::byte> memory) {
  auto made = RegisterBy(mechanism, domain, *device.device, memory);
  while (ToErrno(made.status()) == ENOMEM && EvictOne(*device.device))
    made = RegisterBy(mechanism, domain, *device.device, memory);
  if (made.ok()) return made;
  return ErrnoError(ENOTSUP, absl::StrFormat("%s: %s", AbslView(Name(mechanism)), made.status().message()));
}

void DeviceRegions::Forget(const Domain& domain) {
  std::lock_guard lock(mutex_);
  for (auto& [place, entry] : entries_) {
    std::erase_if(entry.known, [&](const Known& known) { return known.domain.get() == &domain; });
  }
  for (auto& [raw, device] : devices_) device.verdicts.erase(&domain);
}

}  // namespace nacre::verbs
