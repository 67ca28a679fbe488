// Which host memory we have pinned: staging slots and pinned mappings. Kernels may read it, and no copy may
// reach from one range into the next, though their addresses follow each other: CUDA refuses it.
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
  // How many of the bytes, from the first on, lie in one range, or in none.
  size_t Within(std::span<const std::byte> bytes) const;

 private:
  mutable std::shared_mutex mutex_;
  std::map<uintptr_t, size_t> ranges_;
};

}  // namespace nacre::gpu
