// Asks this process's allocator about memory: jemalloc in our programs, any other in a program that has
// loaded libnacre.
#pragma once

#include <cstddef>

namespace nacre {

// Bytes that an allocation of this size takes, with the slack of its size: jemalloc gives whole pages, and
// one more, for what is larger than its small classes.
constexpr size_t AllocationTakes(size_t bytes) {
  constexpr size_t kLargestSmall = 14 << 10, kPage = 4 << 10;
  if (bytes <= kLargestSmall) return bytes;
  return (bytes + kPage - 1) / kPage * kPage + kPage;
}

// Gives memory that was freed, and that the allocator keeps for later, back to the system. Takes milliseconds
// for some ten MiB. Thread-safe.
void ReturnFreeMemory();

}  // namespace nacre
