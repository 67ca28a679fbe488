// Tells which kind of pages memory lies in, for tests.
#pragma once

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>

#include "transport/shared_memory.h"

namespace nacre {

// How many bytes of the mapping with this address are mapped in large pages of shared memory.
inline uint64_t LargePageBytes(const void* address) {
  std::ifstream maps("/proc/self/smaps");
  bool here = false;
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0, end = 0;
    uint64_t kib = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2)
      here = begin <= reinterpret_cast<uintptr_t>(address) && reinterpret_cast<uintptr_t>(address) < end;
    if (here && std::sscanf(line.c_str(), "ShmemPmdMapped: %lu kB", &kib) == 1) return kib << 10;
  }
  return 0;
}

// OK, or why this machine makes no large pages just now.
inline Status CanMakeLargePages() {
  auto memory = SharedMemory::Create("nacre-test", kLargePage);
  return memory.ok() ? (*memory)->MakeLargePages(0, kLargePage) : memory.status();
}

}  // namespace nacre
