// The KvStore on disk: RocksDB. Commit hands the log to the operating system (it survives the process), Sync
// forces it to the disk from one thread of the store's own, many waiters at a time. Memory, log and open
// files are bounded.
//
// Commits that meet are one write (commit_queue.h), but each has its own status: a batch that there is no
// room for is refused alone.
//
// Errors of OpenRocksKv: EBUSY (another process has it open), DATA_LOSS (damaged; the message names the
// file), EROFS, ENOSPC, EACCES. The directory is created if it is missing, its parent is not. A commit that
// finds less than `reserve_bytes` free on the filesystem fails with ENOSPC before it changes anything; after
// space has come back the store goes on by itself. A log or a table that could not be written (others filled
// the disk) makes the store read-only until there is room and it has been opened anew, which it does itself
// at a commit or a sync, at most once a second.
#pragma once

#include <memory>
#include <string>

#include "server/kv/kv_store.h"

namespace nacre {

struct RocksKvOptions {
  uint64_t memory_bytes = 64 << 20;   // block cache and memtables together
  uint64_t reserve_bytes = 32 << 20;  // kept free for compactions and the log
  int open_files = 256;
  bool read_only = false;  // for `nacre doctor`: Commit fails with EROFS; no lock is taken
};

StatusOr<std::unique_ptr<KvStore>> OpenRocksKv(const std::string& directory, RocksKvOptions options);

}  // namespace nacre
