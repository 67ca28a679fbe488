// Ordered key-value store: the seam under every server's metadata. Real form: RocksDB (rocks_kv.h); in memory
// with a simulated crash: MemKv (mem_kv.h).
//
// Thread-safe. Commit is atomic: after any crash all of a batch is there or none. A batch for which Commit
// has returned survives the end of the process at once, and a loss of power once a later Sync has returned;
// what a loss of power takes is always the newest batches, never one out of the middle.
//
// A store that is copied to other machines (server/replication/primary.h) returns from Commit before these
// have the batch: readers see it from then on, and whoever serves over such a store lets nothing leave the
// process that may depend on it until they have it. So what the end of the process takes nobody has heard of.
//
// A commit may take as long as a disk or a network takes: callers hold no std::mutex while they await it. A
// batch whose Commit was called after another's had returned lies behind it in the store; two that are under
// way at the same time may end up in either order (KvBatch::TellPlace says when theirs is settled), so
// callers whose batches touch the same keys order them by locks of their own.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/status.h"
#include "common/task.h"

namespace nacre {

// Changes to be made together, in order.
class KvBatch {
 public:
  struct Op {
    std::string key;
    std::string value;
    bool erase = false;
  };

  void Put(std::string key, std::string value) { ops_.push_back({std::move(key), std::move(value), false}); }
  void Erase(std::string key) { ops_.push_back({std::move(key), {}, true}); }
  void Append(KvBatch other) {
    for (Op& op : other.ops_) ops_.push_back(std::move(op));
  }
  bool empty() const { return ops_.empty(); }

  // For what a full store must still take (a deletion, what a server needs to be started): may use a part of
  // what the store keeps in reserve.
  void UseReserve() { use_reserve_ = true; }
  bool uses_reserve() const { return use_reserve_; }

  // For the forms of KvStore::Admit.
  void SetAdmitted() { admitted_ = true; }
  bool admitted() const { return admitted_; }

  // Sets `placed` within Commit, once the order is settled: batches whose Commit is called from then on lie
  // behind this one, also after a loss of power, though nobody may see this one yet. A form of the store in
  // which that is so only when Commit returns does not set it.
  void TellPlace(OneShot<Unit> placed) { placed_ = std::move(placed); }
  const std::optional<OneShot<Unit>>& placed() const { return placed_; }

  uint64_t bytes() const {  // of keys and values
    uint64_t sum = 0;
    for (const Op& op : ops_) sum += op.key.size() + op.value.size();
    return sum;
  }

  const std::vector<Op>& ops() const { return ops_; }
  std::vector<Op> TakeOps() && { return std::move(ops_); }

 private:
  std::vector<Op> ops_;
  bool use_reserve_ = false;
  bool admitted_ = false;
  std::optional<OneShot<Unit>> placed_;
};

struct KvEntry {
  std::string key;
  std::string value;
};

// A store's contents at one moment, unchanged by later commits: every batch whose Commit had returned then
// (of a store that is copied: that its copies had), and no part of any other. Holding one costs space on the
// disk (overwritten values stay), so for minutes, not days. Thread-safe; destroyed before its store.
class KvSnapshot {
 public:
  virtual ~KvSnapshot() = default;

  // Entries with from <= key, in key order, until they take `max_bytes` (the last one may go beyond); none:
  // there is nothing from there on. UNAVAILABLE: the store had to be opened anew meanwhile, the snapshot is
  // lost.
  virtual StatusOr<std::vector<KvEntry>> Read(std::string_view from, size_t max_bytes) = 0;
};

class KvStore {
 public:
  virtual ~KvStore() = default;

  // NOT_FOUND if there is no such key. Reads what was committed before the call.
  virtual StatusOr<std::string> Get(std::string_view key) = 0;

  // Up to `limit` entries with from <= key < to (to empty: no end), in key order, from one consistent state.
  virtual StatusOr<std::vector<KvEntry>> Scan(std::string_view from, std::string_view to, size_t limit) = 0;

  // The last entry with from <= key < to; NOT_FOUND if there is none.
  virtual StatusOr<KvEntry> Last(std::string_view from, std::string_view to) = 0;

  // The store as it is now.
  virtual StatusOr<std::unique_ptr<KvSnapshot>> Snapshot() = 0;

  // ENOSPC when the disk is full; nothing of the batch is done then. Callers that meet share one write.
  virtual Task<Status> Commit(KvBatch batch) = 0;

  // For batches that go to other stores first: ENOSPC if Commit would refuse this one now. If not, Commit
  // asks no more and takes it into its reserve; it fails with ENOSPC only if the disk really is full.
  virtual Status Admit(KvBatch* batch) = 0;

  // Everything committed before the call is on stable storage afterwards. Several waiters share one flush.
  virtual Task<Status> Sync() = 0;

  struct Space {
    uint64_t total_bytes = 0;
    uint64_t free_bytes = 0;
    uint64_t memory_bytes = 0;  // caches and tables in memory
  };
  virtual Space GetSpace() = 0;

  // Bytes that the store takes on the disk; looks at every file.
  virtual uint64_t UsedBytes() { return 0; }
};

// The smallest key behind every key with this prefix.
std::string PrefixEnd(std::string_view prefix);

}  // namespace nacre
