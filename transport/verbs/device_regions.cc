#include "transport/verbs/device_regions.h"

#include <absl/strings/str_format.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <optional>

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

// Room in a device's BAR1; taken until the last registration in it is gone. Registrations of one dma-buf with
// several RDMA devices share it.
struct DeviceRegions::Room {
  Room(std::shared_ptr<std::atomic<uint64_t>> registered, uint64_t bytes, uint64_t buffer_id)
      : registered(std::move(registered)), bytes(bytes), buffer_id(buffer_id) {
    *this->registered += bytes;
  }
  ~Room() { *registered -= bytes; }
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;

  const std::shared_ptr<std::atomic<uint64_t>> registered;
  const uint64_t bytes;
  const uint64_t buffer_id;        // of the memory
  std::optional<DmaBuf> exported;  // for who registers, one at a time; not of peer memory
};

struct DeviceRegions::Housed {
  Housed(std::shared_ptr<Room> room, std::unique_ptr<Registration> made)
      : room(std::move(room)), registration(std::move(made)) {
    DeviceCount().cached.Add();
  }
  ~Housed() { DeviceCount().cached.Add(-1); }
  Housed(const Housed&) = delete;
  Housed& operator=(const Housed&) = delete;

  const std::shared_ptr<Room> room;  // goes last
  const std::unique_ptr<Registration> registration;
};

StatusOr<std::shared_ptr<MemoryRegion>> DeviceRegions::Register(std::shared_ptr<MemoryDevice> device,
                                                                std::byte* data, size_t size) {
  if (data == nullptr) return ErrnoError(EINVAL, "cannot register device memory at a null address");
  const Place place{device.get(), data, size};
  {
    std::lock_guard lock(mutex_);
    ++entries_[place].regions;
    Device& known = devices_[device.get()];
    if (known.device.expired()) known = Device{.device = device};  // the first, or where another was
  }
  return std::make_shared<Region>(shared_from_this(), std::move(device), place);
}

void DeviceRegions::Remove(const Place& place) {
  Entries::node_type removed;  // what it has registered is taken back with nothing locked
  Lock lock(mutex_);
  --entries_.find(place)->second.regions;
  auto unused = entries_.end();
  not_busy_.wait(lock, [&] {
    unused = entries_.find(place);
    return unused == entries_.end() || !unused->second.busy;
  });
  if (unused != entries_.end() && unused->second.regions == 0) removed = entries_.extract(unused);
  lock.unlock();
}

StatusOr<std::shared_ptr<const Registration>> DeviceRegions::Find(const std::shared_ptr<Domain>& domain,
                                                                  const MemoryRegion& region) {
  const Place place{region.device().get(), region.data(), region.size()};
  ASSIGN_OR_RETURN(const uint64_t buffer_id, region.device()->BufferId(place.memory()));
  std::vector<Known> stale;  // goes with nothing locked
  Lock lock(mutex_);
  for (;; not_busy_.wait(lock)) {
    auto entry = entries_.find(place);
    if (entry == entries_.end()) return absl::NotFoundError("device memory that is not registered");
    std::vector<Known>& known = entry->second.known;
    const auto old = std::stable_partition(known.begin(), known.end(),
                                           [&](const Known& each) { return each.buffer_id == buffer_id; });
    DeviceCount().stale.Add(known.end() - old);
    std::move(old, known.end(), std::back_inserter(stale));
    known.erase(old, known.end());
    if (auto registration = Use(&entry->second, *domain, buffer_id)) return registration;
    if (Status refusal = RefusalOf(&entry->second, *domain, buffer_id); !refusal.ok()) {
      DeviceCount().refused.Add();
      return refusal;
    }
    if (entry->second.busy) continue;
    entry->second.busy = true;
    auto added = Add(domain, &*entry, buffer_id, &lock);
    entry->second.busy = false;
    not_busy_.notify_all();
    lock.unlock();
    if (!added.ok()) DeviceCount().refused.Add();
    return added;
  }
}

std::shared_ptr<const Registration> DeviceRegions::FindKnown(const Domain& domain,
                                                             const MemoryRegion& region) {
  const Place place{region.device().get(), region.data(), region.size()};
  const StatusOr<uint64_t> buffer_id = region.device()->BufferId(place.memory());
  if (!buffer_id.ok()) return nullptr;
  Lock lock(mutex_);
  auto entry = entries_.find(place);
  return entry == entries_.end() ? nullptr : Use(&entry->second, domain, *buffer_id);
}

std::shared_ptr<const Registration> DeviceRegions::Use(Entry* entry, const Domain& domain,
                                                       uint64_t buffer_id) {
  for (Known& each : entry->known) {
    if (each.domain.get() != &domain || each.buffer_id != buffer_id) continue;
    each.used = ++finds_;
    DeviceCount().hits.Add();
    return each.registration;
  }
  return nullptr;
}

Status DeviceRegions::RefusalOf(Entry* entry, const Domain& domain, uint64_t buffer_id) {
  std::erase_if(entry->refused, [&](const Refused& each) { return each.buffer_id != buffer_id; });
  for (const Refused& each : entry->refused) {
    if (each.domain == &domain) return each.why;
  }
  return OkStatus();
}

StatusOr<std::shared_ptr<const Registration>> DeviceRegions::Add(const std::shared_ptr<Domain>& domain,
                                                                 Entries::value_type* entry,
                                                                 uint64_t buffer_id, Lock* lock) {
  const Status failed = absl::UnavailableError("the RDMA device has failed");
  if (domain->retired()) return failed;
  const Place& place = entry->first;
  Device& device = devices_[place.device];  // stays
  const DeviceVerdict verdict = VerdictOf(domain, *place.device, &device, lock);
  RETURN_IF_ERROR(verdict.status);
  std::shared_ptr<Room> room = entry->second.room.lock();
  const bool shares =
      verdict.mechanism == DeviceMechanism::kDmaBuf && room != nullptr && room->buffer_id == buffer_id;
  if (!shares) {
    ASSIGN_OR_RETURN(room, MakeRoom(place, device, buffer_id, lock));
  }
  bool lasting = false;
  StatusOr<std::unique_ptr<Registration>> made =
      RegisterWith(domain, place, verdict.mechanism, room.get(), &lasting, lock);
  Status status = made.status();
  if (lasting && !domain->retired()) entry->second.refused.push_back({domain.get(), buffer_id, status});
  if (status.ok() && domain->retired()) status = failed;
  if (!status.ok()) {
    lock->unlock();
    made = status;
    room.reset();
    lock->lock();
    return status;
  }
  if (room->exported.has_value()) entry->second.room = room;
  auto housed = std::make_shared<Housed>(room, *std::move(made));
  std::shared_ptr<const Registration> registration(housed, housed->registration.get());
  housed.reset();  // so that uses can be counted
  entry->second.known.push_back({domain, buffer_id, ++finds_, registration, room.get()});
  return registration;
}

DeviceVerdict DeviceRegions::VerdictOf(const std::shared_ptr<Domain>& domain, MemoryDevice& memory,
                                       Device* device, Lock* lock) {
  auto found = device->verdicts.find(domain.get());
  if (found != device->verdicts.end()) return found->second;
  lock->unlock();
  const uint64_t budget = std::max<uint64_t>(memory.RdmaBudget(), 1);
  DeviceVerdict verdict = TryDeviceMemory(domain, memory);
  lock->lock();
  device->budget = budget;
  if (domain->retired() || !verdict.lasting) return verdict;
  if (!device->verdicts.emplace(domain.get(), verdict).second) return verdict;
  if (!verdict.status.ok()) {
    LogWarning("data plane: %s; it is copied there from host memory instead", verdict.status.message());
  } else {
    LogInfo("data plane: RDMA device %s writes into %s (%s)%s%s", domain->device(), memory.name(),
            AbslView(Name(verdict.mechanism)), verdict.reason.empty() ? "" : ", not ", verdict.reason);
  }
  return verdict;
}

StatusOr<std::shared_ptr<DeviceRegions::Room>> DeviceRegions::MakeRoom(const Place& place,
                                                                       const Device& device,
                                                                       uint64_t buffer_id, Lock* lock) {
  const uint64_t bytes = MappedBytes(place.memory());
  if (bytes > device.budget) {
    return ErrnoError(ENOTSUP,
                      absl::StrFormat("a buffer of %d bytes of %s cannot be registered with an RDMA device: "
                                      "%d are the most (80 %% of its BAR1); use smaller buffers",
                                      bytes, place.device->name(), device.budget));
  }
  while (*device.registered + bytes > device.budget) {
    if (EvictOne(*place.device, lock)) continue;
    return ErrnoError(ENOTSUP,
                      absl::StrFormat("%d bytes of %s are registered with RDMA devices and in use just now; "
                                      "%d more are beyond the %d that may be (80 %% of its BAR1)",
                                      device.registered->load(), place.device->name(), bytes, device.budget));
  }
  return std::make_shared<Room>(device.registered, bytes, buffer_id);
}

// The last use of what is registered in a room; none: it is in use now.
std::optional<uint64_t> DeviceRegions::LastUse(const Entry& entry, const Room* room) {
  uint64_t last = 0;
  for (const Known& each : entry.known) {
    if (each.room != room) continue;
    if (each.in_use()) return std::nullopt;
    last = std::max(last, each.used);
  }
  return last;
}

// Takes back all that is in the room that has not been used for the longest time: less would free nothing.
// False: all are in use.
bool DeviceRegions::EvictOne(const MemoryDevice& device, Lock* lock) {
  Entry* from = nullptr;
  const Room* room = nullptr;
  uint64_t oldest = UINT64_MAX;
  for (auto& [place, entry] : entries_) {
    if (place.device != &device) continue;
    for (const Known& each : entry.known) {
      const uint64_t used = LastUse(entry, each.room).value_or(UINT64_MAX);
      if (used >= oldest) continue;
      from = &entry;
      room = each.room;
      oldest = used;
    }
  }
  if (from == nullptr) return false;
  std::vector<Known> evicted;
  const auto stay = std::stable_partition(from->known.begin(), from->known.end(),
                                          [room](const Known& each) { return each.room == room; });
  std::move(from->known.begin(), stay, std::back_inserter(evicted));
  from->known.erase(from->known.begin(), stay);
  DeviceCount().evicted.Add(static_cast<int64_t>(evicted.size()));
  lock->unlock();
  evicted.clear();
  lock->lock();
  return true;
}

// BAR1 may be short before the budget is: others use it too.
StatusOr<std::unique_ptr<Registration>> DeviceRegions::RegisterWith(const std::shared_ptr<Domain>& domain,
                                                                    const Place& place,
                                                                    DeviceMechanism mechanism, Room* room,
                                                                    bool* lasting, Lock* lock) {
  for (;;) {
    lock->unlock();
    auto made = RegisterBy(mechanism, domain, *place.device, place.memory(), &room->exported);
    lock->lock();
    if (made.ok()) return made;
    *lasting = ToErrno(made.status()) != ENOMEM;
    if (!*lasting && EvictOne(*place.device, lock)) continue;
    return ErrnoError(ENOTSUP, absl::StrFormat("%s: %s", AbslView(Name(mechanism)), made.status().message()));
  }
}

void DeviceRegions::Forget(const Domain& domain) {
  std::vector<Known> forgotten;  // goes with nothing locked
  std::lock_guard lock(mutex_);
  for (auto& [place, entry] : entries_) {
    std::erase_if(entry.known, [&](Known& known) {
      if (known.domain.get() != &domain) return false;
      forgotten.push_back(std::move(known));
      return true;
    });
    std::erase_if(entry.refused, [&](const Refused& each) { return each.domain == &domain; });
  }
  for (auto& [raw, device] : devices_) device.verdicts.erase(&domain);
}

}  // namespace nacre::verbs
