#include "common/allocator.h"

#include <malloc.h>

// jemalloc's, or null if this process has another allocator.
extern "C" int mallctl(const char* name, void* old, size_t* old_size, void* value, size_t value_size)
    __attribute__((weak));

namespace nacre {

void ReturnFreeMemory() {
  constexpr const char* kPurgeAllArenas = "arena.4096.purge";  // MALLCTL_ARENAS_ALL
  if (mallctl != nullptr) {
    mallctl(kPurgeAllArenas, nullptr, nullptr, nullptr, 0);
  } else {
    malloc_trim(0);
  }
}

}  // namespace nacre
