#include "api/host_memory.h"

#include <absl/strings/str_format.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <memory>

namespace nacre::api {

StatusOr<HostAccess> LookAtHostMemory(const void* address, size_t size) {
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> maps(std::fopen("/proc/self/maps", "re"), std::fclose);
  if (maps == nullptr) return HostAccess{true, true};  // without /proc nobody knows
  const auto begin = reinterpret_cast<uintptr_t>(address);
  uintptr_t reached = begin;
  HostAccess access{true, true};
  char line[512];
  while (reached - begin < size && std::fgets(line, sizeof line, maps.get()) != nullptr) {
    uintptr_t from = 0, to = 0;
    char rights[5] = {};
    if (std::sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %4s", &from, &to, rights) != 3) continue;
    if (to <= reached) continue;
    if (from > reached) break;
    access.readable = access.readable && rights[0] == 'r';
    access.writable = access.writable && rights[1] == 'w';
    reached = to;
  }
  if (reached - begin >= size) return access;
  return ErrnoError(EFAULT, absl::StrFormat("%p + %d: nothing is mapped at %p in this process", address, size,
                                            reinterpret_cast<const void*>(reached)));
}

}  // namespace nacre::api
