// Tells the kernel above a mount what to forget of the files that it keeps (Invalidation). Without
// a kernel, in libnacre, there is nothing to forget. Thread-safe.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "client/filesystem.h"

namespace nacre::client {

class KernelCache {
 public:
  void Set(Invalidation invalidation);

  // Attributes, and the pages that hold bytes of [begin, end). Returns when none of these is left: pages that
  // are being read or written stay until that is over.
  Task<void> Forget(Fid fid, uint64_t begin, uint64_t end);
  // The same of whole files, side by side: pages of one that are locked for long keep none of another.
  Task<void> ForgetAll(std::vector<Fid> fids);
  // Does not wait for anything.
  void ForgetAttributes(const Fid& fid);

 private:
  std::mutex mutex_;
  Invalidation invalidation_;
};

}  // namespace nacre::client
