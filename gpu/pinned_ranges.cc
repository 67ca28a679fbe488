#include "gpu/pinned_ranges.h"

#include <algorithm>
#include <mutex>

namespace nacre::gpu {

void PinnedRanges::Add(std::span<const std::byte> range) {
  std::unique_lock lock(mutex_);
  ranges_[reinterpret_cast<uintptr_t>(range.data())] = range.size();
}

void PinnedRanges::Remove(std::span<const std::byte> range) {
  std::unique_lock lock(mutex_);
  ranges_.erase(reinterpret_cast<uintptr_t>(range.data()));
}

size_t PinnedRanges::Within(std::span<const std::byte> bytes) const {
  auto begin = reinterpret_cast<uintptr_t>(bytes.data());
  std::shared_lock lock(mutex_);
  auto after = ranges_.upper_bound(begin);
  if (after != ranges_.begin()) {
    auto [start, size] = *std::prev(after);
    if (begin - start < size) return std::min(bytes.size(), size - (begin - start));
  }
  return after == ranges_.end() ? bytes.size() : std::min<size_t>(bytes.size(), after->first - begin);
}

bool PinnedRanges::Contains(std::span<const std::byte> bytes) const {
  auto begin = reinterpret_cast<uintptr_t>(bytes.data());
  std::shared_lock lock(mutex_);
  auto after = ranges_.upper_bound(begin);
  if (after == ranges_.begin()) return false;
  auto [start, size] = *std::prev(after);
  return begin - start <= size && size - (begin - start) >= bytes.size();
}

}  // namespace nacre::gpu
