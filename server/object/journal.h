// Commits of an OST: one KvBatch per change with extent records, object record and an undo record; the syncs
// that retire undo records; and the recovery that takes back what a loss of power has torn
// (docs/architecture.md, "Objects").
//
// Changes of one object are committed one after the other; those of different objects side by side. Each has
// a sequence number, given out as they begin. Two that are under way together may lie in the store in the
// other order: they are of different objects, and neither's caller knew of the other's end. Undo records are
// retired in the order of their numbers, up to the oldest change under way. A change begins when its data
// have been written: a flush that covers one covers the data of all with lower numbers, so the recovery,
// which takes back everything from the first number whose data is missing on, never takes back what was
// synced.
//
// A block that a change has freed may still be named by undo records: it becomes free for good only after the
// erasure of its undo record is itself on stable storage, that is with the second sync.
//
// The answer to a request lies in the undo record of its last change, which a loss of power takes back as a
// whole. As the undo record goes, the answer moves to a key of its own (Retirement): so many answers that
// were acknowledged meanwhile cost no key at all. Thread-safe.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "common/task.h"
#include "server/kv/kv_store.h"
#include "server/object/block_store.h"
#include "server/object/chunk_cache.h"
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

// The answer to a request, which the request's last change takes along into the store.
struct Answering {
  SlotAnswer answer;  // its delta: of the changes committed so far
  bool stored = false;
};

// Of what an earlier member of the chain hands on: the epoch of its chain, and the number of the request
// (proto/object.proto, chain_turn). Epoch 0: it begins here.
struct HandedOn {
  uint32_t epoch = 0;
  uint64_t turn = 0;
};

// The request that a change is part of. The journal asks it right before the commit, when everything that a
// request may have to wait for lies behind it, and tells it when the commit is over.
class Originator {
 public:
  virtual ~Originator() = default;
  virtual SessionId session() const = 0;  // 0: the MDS
  virtual Status BeginCommit() = 0;       // not OK: the change must not be made
  virtual void EndCommit() = 0;
  virtual Answering* answering() = 0;  // null: this request's answer is not recorded
  virtual HandedOn handed_on() const { return {}; }
};

// The version and size that a change handed on by an earlier member of the chain gives its object.
struct Applied {
  std::optional<ObjectVersion> before;  // EBADMSG if the object has another one; none: it is not looked at
  ObjectVersion after;
  std::optional<uint64_t> size;  // none: as it was
};
// The object is not all there yet; what completes it says its version.
inline constexpr Applied kIncomplete{};

// One atomic change of one object.
struct ObjectChange {
  Originator* by = nullptr;          // null: this server itself
  bool ends_request = false;         // the last change of `by`'s request: records its answer
  std::vector<ExtentEdit> edits;     // disjoint, ascending
  std::optional<uint64_t> grow_to;   // the size becomes at least this
  std::optional<uint64_t> cut_to;    // the size becomes at most this
  Fid parent;                        // of an object that comes into being
  bool destroy = false;              // the record goes; the edits unmap everything
  bool frees_space = false;          // may use the KvStore's reserve
  const Applied* applied = nullptr;  // of a change that is handed on: instead of grow_to and cut_to
};

// A change that is about to be committed here, for the other members of the chain.
struct OutgoingChange {
  const ObjectId* object = nullptr;  // null: a request has ended without a change
  const ObjectChange* change = nullptr;
  Originator* by = nullptr;
  ObjectVersion before;               // 0.0: the object comes into being
  std::optional<ObjectRecord> after;  // none: the object goes
  std::optional<AnswerRecord> answer;
};

// A block of an object, and the checksum of what it should hold.
struct WantedBlock {
  ObjectId object;
  uint64_t block = 0;
  uint32_t crc = 0;
};

// Hands changes on to the members of the chain behind this one (server/object/chain.h).
class Replicator {
 public:
  virtual ~Replicator() = default;
  virtual uint32_t epoch() const = 0;
  // Returns when all members behind have committed the change; not OK: it must not be committed here. The
  // caller holds what keeps other changes of the object out.
  virtual Task<Status> HandOn(const OutgoingChange& change) = 0;
  // The whole block, from the first of the members behind this one that has bytes of this checksum: the next
  // one in sync, or one that is being filled, whatever else that one lacks. EBADMSG: they have other bytes.
  // ECONNRESET: this store has lost its place in the chain meanwhile, and is the wrong one to ask.
  virtual Task<Status> FetchBlock(WantedBlock wanted, std::span<std::byte> page) = 0;
  // The same, also from the head, which may be about to change it: the caller holds nothing of the object.
  virtual Task<Status> FetchFromAny(WantedBlock wanted, std::span<std::byte> page) = 0;
  // A change that was handed on could not be committed here: this member is behind the others now.
  virtual void NoteFailure(const Status& why) = 0;
};

class Journal {
 public:
  // `chunks`: of the same store. `forget`: hears of blocks that are about to become free, some at a
  // time, but not of all where they are very many; null: nobody does.
  Journal(KvStore* store, BlockStore* blocks, Space* space, ChunkCache* chunks,
          std::function<void(const BlockRun&)> forget = nullptr)
      : store_(store), blocks_(blocks), space_(space), chunks_(chunks), forget_(std::move(forget)) {}

  // Before the first commit; it outlives them. None: the OST has one member.
  void SetReplicator(Replicator* replicator) { replicator_ = replicator; }
  Replicator* replicator() const { return replicator_; }

  // Verifies and empties the undo records. Before anything else; the allocator is filled afterwards.
  // `may_have_lost`: false if it is only a process that has ended (server/kv/losses.h). Then the data of what
  // was committed are there, and nothing is taken back: a block that does not match is a bad one, to be
  // mended or reported as any other.
  struct Recovered {
    uint64_t verified = 0;
    uint64_t rolled_back = 0;
  };
  Task<StatusOr<Recovered>> Recover(bool may_have_lost);

  struct Committed {
    int64_t delta = 0;  // of the object's number of blocks
    bool made = false;  // there was no such object before
  };
  // Blocks that the change unmaps become free by later syncs. The caller holds the object's lock on the
  // blocks it edits, and keeps object and change alive. ALREADY_EXISTS: the object is as an applied change
  // makes it.
  Task<StatusOr<Committed>> Commit(ObjectState* object, const ObjectChange& change);
  // When every change and every answer has been committed, or given up, that was being committed now.
  Task<void> AwaitCommits();
  // Until the guard goes nothing is committed to this object.
  Task<AsyncMutex::Guard> HoldChanges(const ObjectId& id) { return OrderOf(id).Lock(); }
  // The same of all objects, and of answers that are recorded without a change.
  Task<std::vector<AsyncMutex::Guard>> HoldAllChanges();

  // Records the answer of a request that ends without a change. A loss of power that takes back what was
  // committed before it takes back the answer, too.
  Task<Status> Record(Originator* by);

  // The answers of these sessions, in the first so many slots of each, go with the next sync. No commit of
  // theirs is under way. Their later commits may use the slots at once.
  void ForgetAnswers(const absl::flat_hash_map<SessionId, uint32_t>& slots);

  // The MDT knows how far the object reached at this version: the session's growth record goes, unless the
  // object has changed since.
  Task<Status> Settle(ObjectState* object, SessionId session, uint64_t version);

  // Everything committed before the call is on stable storage.
  Task<Status> Sync();

  // Flushes what was written past the journal (blocks that were repaired).
  Task<Status> FlushData();

  // Not OK: data was not flushed when that was asked for. Nobody can tell what of it the disk has: the kernel
  // says so once, and takes what it could not write for written; so does a disk that loses its cache. So
  // every later sync fails as well, nothing is freed, and no undo record goes: a start that verifies
  // (Recover) takes back what is not there.
  Status flush_failure() const;

  // Frees what waits for a sync: false if nothing does.
  Task<StatusOr<bool>> Reclaim();

  // Nothing is committed any more (the server has "crashed", or was stopped).
  void Close() { closed_.store(true); }
  bool closed() const { return closed_.load(); }

  uint64_t waiting_blocks() const;  // unmapped, not free yet
  size_t waiting_records() const;

 private:
  struct Retiring {
    uint64_t sequence;
    std::vector<BlockRun> freed;
    std::optional<SlotAnswer> answer;
  };
  struct Edited {
    uint64_t index;
    uint64_t changed = 0;
    Chunk before;
    Chunk after;
  };

  // One change on its way into the store.
  struct Prepared {
    KvBatch batch;  // all but the undo record
    UndoRecord undo;
    std::vector<BlockRun> freed;
    std::optional<ObjectRecord> record;  // as it will be; none: destroyed
    SessionId grower = 0;                // likewise (ObjectState)
    Committed result;
  };

  StatusOr<Prepared> Prepare(ObjectState* object, const ObjectChange& change);
  Task<Status> HandOn(const ObjectState& object, const ObjectChange& change, const Prepared& prepared);
  Task<Status> HandOnMade(const ObjectChange& change, ObjectState* object);
  Task<Status> CommitPrepared(Prepared* prepared);
  AsyncMutex& OrderOf(const ObjectId& id);
  uint64_t Begin();  // a sequence number
  void End(uint64_t sequence, std::vector<BlockRun> freed, std::optional<SlotAnswer> answer);
  StatusOr<std::vector<Edited>> ApplyEdits(const ObjectId& id, const std::vector<ExtentEdit>& edits);
  Task<Status> SyncLocked();
  Task<Status> FlushBoth(bool data);
  Task<Status> FlushBlocks();  // call with sync_mutex_ held, as for the next
  Task<Status> EraseUndo(uint64_t upto);
  Task<void> Free(std::vector<BlockRun> runs);
  Task<void> Forget(const std::vector<BlockRun>& runs);

  Task<StatusOr<uint64_t>> FirstBad(uint64_t* verified);
  Task<StatusOr<bool>> Arrived(const UndoRecord& undo);
  Task<Status> RollBack(uint64_t sequence, const UndoRecord& undo);
  Task<Status> DropUndoRecords();

  KvStore* const store_;
  BlockStore* const blocks_;
  Space* const space_;
  ChunkCache* const chunks_;
  const std::function<void(const BlockRun&)> forget_;
  Replicator* replicator_ = nullptr;
  std::atomic<bool> closed_{false};

  // From reading an object's records until their change is committed. Objects share them by their ids.
  std::array<AsyncMutex, 64> orders_;

  mutable std::mutex mutex_;
  uint64_t begun_ = 0;             // the newest sequence number
  uint64_t ended_ = 0;             // how many changes have been committed, or have failed
  std::set<uint64_t> under_way_;   // their sequence numbers
  std::deque<Retiring> unsynced_;  // oldest first, without gaps up to begun_
  std::vector<BlockRun> erased_;   // their undo records are erased, which the next sync makes last
  absl::flat_hash_map<SessionId, uint32_t> forgotten_;  // slots whose answers the next sync erases
  uint64_t waiting_blocks_ = 0;
  Status flush_failure_;

  AsyncMutex sync_mutex_;
  uint64_t synced_ = 0;  // what ended_ was when the last sync began; under sync_mutex_
};

}  // namespace nacre::ost
