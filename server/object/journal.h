// Commits of an OST: one KvBatch per change with extent records, object record and an undo record; the syncs
// that retire undo records; and the recovery that takes back what a loss of power has torn
// (docs/architecture.md, "Objects").
//
// A block that a change has freed may still be named by undo records: it becomes free for good only after the
// erasure of its undo record is itself on stable storage, that is with the second sync. Thread-safe.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "common/task.h"
#include "server/kv/kv_store.h"
#include "server/object/block_store.h"
#include "server/object/format.h"
#include "server/object/object_table.h"
#include "server/object/space.h"

namespace nacre::ost {

// New mapping of the blocks [first, first + count) of an object. The arrays belong to the caller.
struct ExtentEdit {
  uint64_t first = 0;
  uint64_t count = 0;
  const uint64_t* physical = nullptr;  // null: a hole
  const uint32_t* crc = nullptr;       // null, with physical: unwritten
};

// One atomic change of one object.
struct ObjectChange {
  std::vector<ExtentEdit> edits;    // disjoint, ascending
  std::optional<uint64_t> grow_to;  // the size becomes at least this
  std::optional<uint64_t> cut_to;   // the size becomes at most this
  Fid parent;                       // of an object that comes into being
  bool destroy = false;             // the record goes; the edits unmap everything
  bool frees_space = false;         // may use the KvStore's reserve
};

class Journal {
 public:
  Journal(KvStore* store, BlockStore* blocks, Space* space) : store_(store), blocks_(blocks), space_(space) {}

  // Verifies and empties the undo records. Before anything else; the allocator is filled afterwards.
  struct Recovered {
    uint64_t verified = 0;
    uint64_t rolled_back = 0;
  };
  Task<StatusOr<Recovered>> Recover();

  // The change of the object's number of blocks. Blocks that it unmaps become free by later syncs. The caller
  // holds the object's lock on the blocks it edits.
  StatusOr<int64_t> Commit(ObjectState* object, const ObjectChange& change);

  // Everything committed before the call is on stable storage.
  Task<Status> Sync();

  // Frees what waits for a sync: false if nothing does.
  Task<StatusOr<bool>> Reclaim();

  // Nothing is committed any more (the server has "crashed", or was stopped).
  void Close() { closed_.store(true); }
  bool closed() const { return closed_.load(); }

  uint64_t waiting_blocks() const;  // unmapped, not free yet
  size_t waiting_records() const;
  uint64_t committed() const;

 private:
  struct Retiring {
    uint64_t sequence;
    std::vector<BlockRun> freed;
  };
  struct Edited {
    uint64_t index;
    uint64_t changed = 0;
    Chunk before;
    Chunk after;
  };

  StatusOr<std::vector<Edited>> ApplyEdits(const ObjectId& id, const std::vector<ExtentEdit>& edits);
  Task<Status> SyncLocked();
  Task<Status> FlushBoth(bool data);
  Status EraseUndo(uint64_t upto);

  Task<StatusOr<uint64_t>> FirstBad(uint64_t* verified);
  Task<StatusOr<bool>> Arrived(const UndoRecord& undo);
  Status RollBack(uint64_t sequence, const UndoRecord& undo);
  Task<Status> DropUndoRecords();

  KvStore* const store_;
  BlockStore* const blocks_;
  Space* const space_;
  std::atomic<bool> closed_{false};

  mutable std::mutex commit_mutex_;  // orders commits as their undo records
  uint64_t committed_ = 0;           // sequence of the newest undo record
  std::deque<Retiring> unsynced_;    // oldest first
  std::vector<BlockRun> erased_;     // their undo records are erased, which the next sync makes last
  uint64_t waiting_blocks_ = 0;

  AsyncMutex sync_mutex_;
  uint64_t synced_ = 0;  // under sync_mutex_
};

}  // namespace nacre::ost
