// Which host memory we have pinned, so that kernels may read it: staging slots and pinned mappings.
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <shared_mutex>
#include <span>

namespace nacre::gpu {

class PinnedRanges {
 public:
  void Add(std::span<const std::byte> range);
  void Remove(std::span<const std::byte> range);
  bool Contains(std::span<const std::byte> bytes) const;

 private:
  mutable std::shared_mutex mutex_;
  std::map<uintptr_t, size_t> ranges_;
};

}  // namespace nacre::gpu
