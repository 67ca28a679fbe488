// The BlockStore on a disk: io_uring and O_DIRECT on large sparse files in a directory, or on a block device.
// Files are locked against a second user. Space in files is set aside by Preallocate and given back by
// Discard.
//
// An executor that is given outlives the store. Without io_uring (old kernel, forbidden) a few threads do the
// calls, without O_DIRECT the page cache is in between; either is logged with its reason. Open errors: EBUSY
// (in use), EROFS, ENOSPC, EACCES, EINVAL; all name the path.
#pragma once

#include <memory>
#include <string>

#include "server/object/block_store.h"

namespace nacre {

struct UringBlockStoreOptions {
  uint64_t size_bytes = 0;             // 0: what the filesystem (or device) has, less the reserve
  uint64_t reserve_bytes = 256 << 20;  // of a filesystem: left to the KvStore beside it and to the system
  bool use_uring = true;
  bool use_direct = true;
  bool read_only = false;  // for `nacre doctor`
  Executor executor;  // whose threads take completions (disk_engine.h); empty: a thread of the store's own
};

StatusOr<std::unique_ptr<BlockStore>> OpenUringBlockStore(const std::string& path,
                                                          UringBlockStoreOptions options);

}  // namespace nacre
