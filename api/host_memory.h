// Classifies a range of this process's address space as the CPU sees it. Stateless, thread-safe.
#pragma once

#include <cstddef>

#include "common/status.h"

namespace nacre::api {

struct HostAccess {
  bool readable = false;
  bool writable = false;
};

// EFAULT: not all of it is mapped. As of now: mappings may change.
StatusOr<HostAccess> LookAtHostMemory(const void* address, size_t size);

}  // namespace nacre::api
