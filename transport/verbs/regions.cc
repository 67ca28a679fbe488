#include "transport/verbs/regions.h"

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <mutex>

namespace nacre::verbs {

class RegionTable::Region : public MemoryRegion {
 public:
  Region(std::shared_ptr<RegionTable> table, Entries::iterator entry, std::byte* data, size_t size)
      : MemoryRegion(data, size), table_(std::move(table)), entry_(entry) {}
  ~Region() override { table_->Remove(entry_); }

 private:
  const std::shared_ptr<RegionTable> table_;
  const Entries::iterator entry_;
};

StatusOr<std::shared_ptr<MemoryRegion>> RegionTable::Register(std::byte* data, size_t size) {
  if (data == nullptr) return ErrnoError(EINVAL, "cannot register memory at a null address");
  Entries::iterator entry;
  {
    std::lock_guard lock(mutex_);
    entry = entries_.emplace(data, Entry{size, {}});
  }
  return std::make_shared<Region>(shared_from_this(), entry, data, size);
}

void RegionTable::Remove(Entries::iterator entry) {
  std::lock_guard lock(mutex_);
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

std::optional<MemoryKeys> RegionTable::FindIn(const Entry& entry, const Domain& domain) {
  for (const auto& [known, registration] : entry.registrations) {
    if (known.get() != &domain) continue;
    return MemoryKeys{registration->local_key(), registration->remote_key(), registration->region(), nullptr};
  }
  return std::nullopt;
}

StatusOr<MemoryKeys> RegionTable::Find(const std::shared_ptr<Domain>& domain, const std::byte* data,
                                       size_t size) {
  {
    std::shared_lock lock(mutex_);
    auto entry = Locate(data, size);
    if (entry == entries_.end()) return absl::NotFoundError("memory that is not registered");
    if (auto found = FindIn(entry->second, *domain)) return *found;
  }
  std::lock_guard lock(mutex_);
  auto entry = Locate(data, size);
  if (entry == entries_.end()) return absl::NotFoundError("memory that is not registered");
  return Add(domain, &*entry);
}

StatusOr<MemoryKeys> RegionTable::FindSpan(const std::shared_ptr<Domain>& domain, const MemorySpan& span) {
  if (span.region->device() == nullptr) return Find(domain, span.data(), span.length);
  ASSIGN_OR_RETURN(std::shared_ptr<const Registration> held, devices_->Find(domain, *span.region));
  return MemoryKeys{held->local_key(), held->remote_key(), held->region(), std::move(held)};
}

StatusOr<MemoryKeys> RegionTable::Add(const std::shared_ptr<Domain>& domain, Entries::value_type* entry) {
  auto& [data, region] = *entry;
  if (auto found = FindIn(region, *domain)) return *found;
  if (domain->retired()) return absl::UnavailableError("the RDMA device has failed");
  const int others =
      domain->windows() ? IBV_ACCESS_MW_BIND : IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  ASSIGN_OR_RETURN(
      std::unique_ptr<Registration> made,
      Registration::Make(domain, const_cast<std::byte*>(data), region.size, IBV_ACCESS_LOCAL_WRITE | others));
  const MemoryKeys keys{made->local_key(), made->remote_key(), made->region(), nullptr};
  region.registrations.emplace_back(domain, std::move(made));
  return keys;
}

Status RegionTable::RegisterAll(const std::shared_ptr<Domain>& domain) {
  std::lock_guard lock(mutex_);
  for (auto& entry : entries_) {
    if (entry.second.size > 0) RETURN_IF_ERROR(Add(domain, &entry).status());
  }
  return OkStatus();
}

void RegionTable::Forget(Domain& domain) {
  {
    std::lock_guard lock(mutex_);
    domain.Retire();
  }
  devices_->Forget(domain);
  std::lock_guard lock(mutex_);
  for (auto& [data, entry] : entries_) {
    std::erase_if(entry.registrations, [&](const auto& known) { return known.first.get() == &domain; });
  }
}

}  // namespace nacre::verbs
