#include "transport/verbs/regions.h"

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <mutex>

#include "transport/shared_memory.h"

namespace nacre::verbs {
namespace {

MemoryKeys KeysOf(std::shared_ptr<const Registration> held) {
  return {held->local_key(), held->remote_key(), held->region(), std::move(held)};
}

}  // namespace

class RegionTable::Region : public MemoryRegion {
 public:
  Region(std::shared_ptr<RegionTable> table, Entries::iterator entry, std::byte* data, size_t size,
         std::shared_ptr<SharedMemory> own)
      : MemoryRegion(data, size), own_(std::move(own)), table_(std::move(table)), entry_(entry) {}
  ~Region() override { table_->Remove(entry_); }

 private:
  const std::shared_ptr<SharedMemory> own_;  // null: it is somebody else's
  const std::shared_ptr<RegionTable> table_;
  const Entries::iterator entry_;
};

StatusOr<std::shared_ptr<MemoryRegion>> RegionTable::Register(std::byte* data, size_t size) {
  if (data == nullptr) return ErrnoError(EINVAL, "cannot register memory at a null address");
  return Insert(data, size, nullptr);
}

std::shared_ptr<MemoryRegion> RegionTable::RegisterShared(std::shared_ptr<SharedMemory> memory) {
  std::byte* const data = memory->data();
  const size_t size = memory->size();
  return Insert(data, size, std::move(memory));
}

std::shared_ptr<MemoryRegion> RegionTable::Insert(std::byte* data, size_t size,
                                                  std::shared_ptr<SharedMemory> own) {
  Entries::iterator entry;
  {
    std::lock_guard lock(mutex_);
    entry = entries_.emplace(data, Entry{size, own != nullptr});
  }
  return std::make_shared<Region>(shared_from_this(), entry, data, size, std::move(own));
}

void RegionTable::Remove(Entries::iterator entry) {
  std::unique_lock lock(mutex_);
  not_busy_.wait(lock, [&] { return !entry->second.busy; });
  entries_.erase(entry);
}

// Regions seldom overlap, so the nearest one below nearly always is the one.
RegionTable::Entries::iterator RegionTable::Locate(const std::byte* data, size_t size) {
  for (auto entry = entries_.upper_bound(data); entry != entries_.begin();) {
    --entry;
    const auto offset = static_cast<size_t>(data - entry->first);
    if (offset <= entry->second.size && size <= entry->second.size - offset) return entry;
  }
  return entries_.end();
}

std::optional<StatusOr<MemoryKeys>> RegionTable::FindIn(const Entry& entry, const Domain& domain) {
  for (const auto& [known, registration, refusal] : entry.known) {
    if (known.get() != &domain) continue;
    if (registration == nullptr) return refusal;
    return MemoryKeys{registration->local_key(), registration->remote_key(), registration->region(), nullptr};
  }
  return std::nullopt;
}

// None: it has to be registered first.
std::optional<StatusOr<MemoryKeys>> RegionTable::FindKnown(const Domain& domain, const std::byte* data,
                                                           size_t size) {
  std::shared_lock lock(mutex_);
  auto entry = Locate(data, size);
  if (entry == entries_.end()) return absl::NotFoundError("memory that is not registered");
  return FindIn(entry->second, domain);
}

StatusOr<MemoryKeys> RegionTable::Find(const std::shared_ptr<Domain>& domain, const std::byte* data,
                                       size_t size) {
  if (auto known = FindKnown(*domain, data, size)) return *std::move(known);
  std::unique_lock lock(mutex_);
  for (;; not_busy_.wait(lock)) {
    auto entry = Locate(data, size);
    if (entry == entries_.end()) return absl::NotFoundError("memory that is not registered");
    if (auto found = FindIn(entry->second, *domain)) return *std::move(found);
    if (!entry->second.busy) return Add(domain, entry, &lock);
  }
}

StatusOr<MemoryKeys> RegionTable::FindSpan(const std::shared_ptr<Domain>& domain, const MemorySpan& span) {
  if (span.region->device() == nullptr) return Find(domain, span.data(), span.length);
  ASSIGN_OR_RETURN(std::shared_ptr<const Registration> held, devices_->Find(domain, *span.region));
  return KeysOf(std::move(held));
}

std::optional<StatusOr<MemoryKeys>> RegionTable::FindKnownSpan(const Domain& domain, const MemorySpan& span) {
  if (span.region->device() == nullptr) return FindKnown(domain, span.data(), span.length);
  std::shared_ptr<const Registration> held = devices_->FindKnown(domain, *span.region);
  if (held == nullptr) return std::nullopt;
  return KeysOf(std::move(held));
}

StatusOr<MemoryKeys> RegionTable::Add(const std::shared_ptr<Domain>& domain, Entries::iterator entry,
                                      std::unique_lock<std::shared_mutex>* lock) {
  const Status failed = absl::UnavailableError("the RDMA device has failed");
  if (domain->retired()) return failed;
  auto& [data, region] = *entry;
  region.busy = true;
  lock->unlock();
  const int others =
      domain->windows() ? IBV_ACCESS_MW_BIND : IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  StatusOr<std::unique_ptr<Registration>> made =
      Registration::Make(domain, const_cast<std::byte*>(data), region.size, IBV_ACCESS_LOCAL_WRITE | others);
  lock->lock();
  region.busy = false;
  not_busy_.notify_all();
  if (domain->retired()) return failed;  // and what was made goes
  if (made.ok()) {
    region.known.push_back({domain, *std::move(made), OkStatus()});
  } else {
    region.known.push_back({domain, nullptr, made.status()});
  }
  return *FindIn(region, *domain);
}

Status RegionTable::RegisterOwn(const std::shared_ptr<Domain>& domain) {
  std::unique_lock lock(mutex_);
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const Entry& region = entry->second;
    std::optional<StatusOr<MemoryKeys>> keys;
    if (IsOwn(region)) keys = FindIn(region, *domain);
    if (keys) RETURN_IF_ERROR(keys->status());
    if (!IsOwn(region) || keys) {
      ++entry;
      continue;
    }
    if (region.busy) {
      not_busy_.wait(lock);
    } else {
      RETURN_IF_ERROR(Add(domain, entry, &lock).status());
    }
    entry = entries_.begin();  // others may have come and gone
  }
  return OkStatus();
}

std::optional<Status> RegionTable::FindOwn(const Domain& domain) {
  std::shared_lock lock(mutex_);
  for (const auto& [data, entry] : entries_) {
    if (!IsOwn(entry)) continue;
    const auto found = FindIn(entry, domain);
    if (!found) return std::nullopt;
    if (!found->ok()) return found->status();
  }
  return OkStatus();
}

bool RegionTable::HasOwn() {
  std::shared_lock lock(mutex_);
  return std::any_of(entries_.begin(), entries_.end(), [](const auto& known) { return IsOwn(known.second); });
}

void RegionTable::Forget(Domain& domain) {
  {
    std::lock_guard lock(mutex_);
    domain.Retire();
  }
  devices_->Forget(domain);
  std::lock_guard lock(mutex_);
  for (auto& [data, entry] : entries_) {
    std::erase_if(entry.known, [&](const Known& known) { return known.domain.get() == &domain; });
  }
}

}  // namespace nacre::verbs
