// Divides an OST's space: the allocator, the promises made to sessions (grants), and the small reserve that
// keeps overwriting, which takes new blocks before the old ones are free, possible on a full OST.
// Thread-safe.
#pragma once

#include <absl/functional/any_invocable.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "common/task.h"
#include "server/object/allocator.h"
#include "server/object/block_store.h"

namespace nacre::ost {

class Space;

// Promised blocks on their way into a write: taken from a session's grant, and no longer promised when this
// ends, used or not. Movable; not thread-safe.
class GrantUse {
 public:
  GrantUse() = default;
  GrantUse(Space* space, uint64_t blocks) : space_(space), left_(blocks) {}
  GrantUse(const GrantUse&) = delete;
  GrantUse& operator=(const GrantUse&) = delete;
  ~GrantUse();
  uint64_t left() const { return left_; }

 private:
  friend class Space;
  Space* space_ = nullptr;
  uint64_t left_ = 0;
};

class Space {
 public:
  // `reclaim` makes blocks free that only wait for a sync, if there are any: false when there were none.
  using Reclaim = absl::AnyInvocable<Task<StatusOr<bool>>()>;

  Space(BlockStore* blocks, std::string place);

  Allocator& allocator() { return allocator_; }
  void SetReclaim(Reclaim reclaim) { reclaim_ = std::move(reclaim); }

  struct Request {
    uint64_t blocks = 0;
    uint64_t goal = 0;      // physical block to begin at if possible
    bool replaces = false;  // as many blocks become free: may use the reserve
    GrantUse* grant = nullptr;
  };
  // ENOSPC if the OST is full, also after what waits for a sync has become free.
  Task<StatusOr<std::vector<BlockRun>>> Allocate(Request request);

  // Promises up to `blocks`; returns how many it could.
  Task<uint64_t> Promise(uint64_t blocks);
  void Release(uint64_t promised);

  uint64_t promised() const;
  uint64_t reserve() const { return reserve_; }
  // Blocks that are free or can be backed; promises and reserve are not taken off.
  uint64_t free_blocks() const;

  // Gives space of empty groups back to the disk below, which other OSTs or the MDT may share: all but two
  // groups while it has room, and every group that no promise needs once it has little.
  Task<Status> Trim();
  // Once, after the scan at the start: gives back what an earlier run had set aside and left empty.
  Task<Status> DiscardUnbacked();

 private:
  std::optional<std::vector<BlockRun>> TryAllocate(const Request& request);
  Task<Status> BackMore();
  Task<Status> Discard(std::vector<BlockRun> runs);

  BlockStore* const blocks_;
  const std::string place_;
  Allocator allocator_;
  const uint64_t reserve_;
  Reclaim reclaim_;
  mutable std::mutex mutex_;
  uint64_t promised_ = 0;
  AsyncMutex backing_;
};

}  // namespace nacre::ost
