// A KvStore in memory for tests and the simulation, with crashes. Thread-safe.
//
// Data outlives CrashProcess and LosePower: a "restarted server" opens the same MemKv again. After either, a
// Sync that was under way fails with UNAVAILABLE and counts for nothing.
#pragma once

#include <absl/functional/any_invocable.h>

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "common/random.h"
#include "server/kv/kv_store.h"

namespace nacre {

class MemKv : public KvStore {
 public:
  // Awaited by each Sync before it takes effect: a delay, a failure, or both. None: Sync takes no time.
  using SyncHook = absl::AnyInvocable<Task<Status>()>;
  // Awaited by each Commit before it takes effect, and again before its caller goes on: the time that others
  // have to run meanwhile; and, if somebody waits for its place, between that and its effect. None: it is
  // done at once.
  using CommitPause = absl::AnyInvocable<Task<void>()>;
  // Asked when a Commit takes effect, or instead when it is admitted; an error refuses the batch (a full
  // disk).
  using CommitHook = absl::AnyInvocable<Status(const KvBatch&)>;

  explicit MemKv(uint64_t total_bytes = uint64_t{1} << 40) : total_bytes_(total_bytes) {}

  StatusOr<std::string> Get(std::string_view key) override;
  StatusOr<std::vector<KvEntry>> Scan(std::string_view from, std::string_view to, size_t limit) override;
  StatusOr<KvEntry> Last(std::string_view from, std::string_view to) override;
  StatusOr<std::unique_ptr<KvSnapshot>> Snapshot() override;  // a copy
  Task<Status> Commit(KvBatch batch) override;
  Status Admit(KvBatch* batch) override;
  Task<Status> Sync() override;
  Space GetSpace() override;

  void SetSyncHook(SyncHook hook);
  void SetCommitPause(CommitPause pause);
  void SetCommitHook(CommitHook hook);
  void SetFree(std::optional<uint64_t> bytes);  // what GetSpace says; none: the truth

  // The process ends: nothing committed is lost.
  void CrashProcess();

  // The machine loses power: of the batches since the last Sync a random number of the newest is gone.
  void LosePower(Random& random);

  size_t unsynced_batches() const;

 private:
  // Takes a batch back: key -> value before (erase: there was none).
  using Undo = std::vector<KvBatch::Op>;

  struct Placed {
    KvBatch batch;
    std::optional<Status> done;  // none: it waits for its effect
  };

  std::shared_ptr<Placed> Place(KvBatch batch);
  Status CommitUntil(const Placed& last);
  Status CommitNow(const KvBatch& batch);  // mutex_ is held
  Status CheckRoom(const KvBatch& batch);
  void Apply(KvBatch::Op op, Undo* undo);
  void TakeBack(Undo undo);

  mutable std::mutex mutex_;
  std::map<std::string, std::string, std::less<>> data_;
  std::deque<std::shared_ptr<Placed>> placed_;  // what has a place and no effect yet, in their order
  std::deque<Undo> unsynced_;                   // oldest first
  uint64_t committed_ = 0;                      // batches ever; the newest unsynced_ belongs to this number
  uint64_t incarnation_ = 0;                    // rises with every crash
  uint64_t bytes_ = 0;
  std::optional<uint64_t> told_free_;
  const uint64_t total_bytes_;
  std::shared_ptr<SyncHook> sync_hook_;
  std::shared_ptr<CommitPause> commit_pause_;
  CommitHook commit_hook_;
};

}  // namespace nacre
