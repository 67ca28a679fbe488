// Group commit: callers that commit at the same time become one write.
//
// A caller that meets nobody writes its batch on its own thread. Those that come while somebody writes wait;
// when that write is over, the first of them leads and writes for all that wait. So no caller ever writes
// more than one group, and one that is alone pays no change of threads. Batches are written in the order in
// which they get their places (KvBatch::TellPlace), so one whose Commit was called after another's had
// returned behind it.
//
// A write may be awaited (one that goes to other machines) or take the thread (one that goes to a file).
//
// Thread-safe. The queue outlives its callers, and a Commit under way must be let run to its end.
#pragma once

#include <absl/container/inlined_vector.h>
#include <absl/functional/any_invocable.h>

#include <deque>
#include <mutex>
#include <optional>

#include "common/task.h"
#include "server/kv/kv_store.h"

namespace nacre {

class CommitQueue {
 public:
  struct Commitment {
    KvBatch batch;
    uint64_t bytes = 0;  // of keys and values
    Status status;       // set by the write

   private:
    friend class CommitQueue;
    std::optional<OneShot<bool>> turn;  // where it waits: true: it leads; false: it has been written
  };
  using Group = absl::InlinedVector<Commitment*, 8>;

  // Writes a group's batches in order and sets the status of each. One at a time.
  using Write = absl::AnyInvocable<Task<void>(const Group&)>;

  explicit CommitQueue(Write write) : write_(std::move(write)) {}

  Task<Status> Commit(KvBatch batch);

 private:
  bool Enter(Commitment* self);  // false: another is writing; self waits for its turn
  Group TakeGroup(Commitment* leader);
  void Leave(const Group& group);

  Write write_;
  std::mutex mutex_;
  bool writing_ = false;  // somebody leads, or was told to
  std::deque<Commitment*> waiting_;
};

}  // namespace nacre
