// libibverbs of this machine with dma-bufs added: no released soft-RoCE registers any, so the pages behind
// the descriptor are mapped here and registered as host memory under the device's addresses. Keys and
// addresses on the wire are those of the real thing. For files as FakeDevice exports them.
#pragma once

#include "transport/verbs/ibverbs_library.h"

namespace nacre::verbs {

// The library that LoadIbverbs finds while this object lives; nothing changes where there is no libibverbs.
class EmulatedDmaBufs {
 public:
  EmulatedDmaBufs();
  ~EmulatedDmaBufs() { UseIbverbs(nullptr); }
  EmulatedDmaBufs(const EmulatedDmaBufs&) = delete;
  EmulatedDmaBufs& operator=(const EmulatedDmaBufs&) = delete;
};

}  // namespace nacre::verbs
