// The disk under an OST: a flat range of 4 KiB blocks. Real form: io_uring and O_DIRECT on large files or a
// device (uring_block_store.h); in memory with lost writes: MemBlockStore (mem_block_store.h).
//
// Thread-safe; operations on different blocks may be carried out in any order. A write that has completed is
// seen by every later read, survives the end of the process, and survives a loss of power once a later Flush
// has completed. A crash in the middle of a write leaves any mixture of old and new 4 KiB blocks, and of a
// single block one or the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/ids.h"
#include "common/status.h"
#include "common/task.h"

namespace nacre {

class BlockStore {
 public:
  virtual ~BlockStore() = default;

  virtual uint64_t block_count() const = 0;

  // Offsets in blocks; the buffers' sizes are multiples of kBlockSize and their addresses aligned to it.
  virtual Task<Status> Read(uint64_t block, std::span<const std::span<std::byte>> buffers) = 0;
  virtual Task<Status> Write(uint64_t block, std::span<const std::span<const std::byte>> buffers) = 0;
  virtual Task<Status> Flush() = 0;

  // OK while what it was opened on is where it was; else where it should be.
  virtual Status CheckPlace() { return OkStatus(); }

  // Sets space aside below, so that writes to these blocks cannot fail for want of it. ENOSPC: the disk has
  // not got it.
  virtual Task<Status> Preallocate(uint64_t block, uint64_t count) = 0;

  // How many blocks Preallocate may still get, besides those it has got.
  virtual uint64_t available_blocks() const = 0;

  // Whether others use the disk that Preallocate takes from, so that what is not needed should go back to it.
  virtual bool shares_disk() const = 0;

  // The blocks' content does not matter any more; space goes back to the filesystem below where it can.
  virtual Task<Status> Discard(uint64_t block, uint64_t count) = 0;
};

}  // namespace nacre
