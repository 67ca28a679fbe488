// Brings bytes of files out of their objects into memory of the cache: those that a reader waits for, those
// ahead of one who reads on, and those that are not to stay there.
//
// Thread-safe. The arguments of the constructor must outlive it. A wait for a server ends with its answer or
// with the session, a wait for memory when others have let go of theirs.
#pragma once

#include <memory>

#include "client/background.h"
#include "client/data_cache.h"
#include "client/entrance.h"
#include "client/filesystem.h"
#include "client/object_io.h"

namespace nacre::client {

class CacheReads {
 public:
  CacheReads(const Environment& environment, const Options& options, std::shared_ptr<DataCache> cache,
             ObjectIo& io, Entrance& entrance, Background& background);

  // Brings [begin, end) into the cache. The range is locked by the caller.
  Task<Status> Fetch(InodePtr inode, uint64_t begin, uint64_t end);
  // Fetches behind this read what the handle's reader will want next, if it reads on. In the background, and
  // only as much as there is memory for.
  void Ahead(const HandlePtr& handle, uint64_t offset, size_t size, uint64_t file_size);
  // Reads past what is cached, into memory that holds nothing of the file afterwards. `complete`: as in
  // ObjectIo::Read.
  Task<StatusOr<ReadResult>> Past(InodePtr inode, LayoutPtr layout, uint64_t offset, size_t size,
                                  bool* complete);

 private:
  Task<Status> Fill(InodePtr inode, uint64_t begin, uint64_t end, bool may_wait, CancellationPtr patience);
  Task<void> FillAhead(InodePtr inode, uint64_t begin, uint64_t end, Gate::Pass pass);

  const Environment& environment_;
  const Options& options_;
  const std::shared_ptr<DataCache> cache_;
  ObjectIo& io_;
  Entrance& entrance_;
  Background& background_;
};

}  // namespace nacre::client
