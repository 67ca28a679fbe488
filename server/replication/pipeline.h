// The primary's changes on their way to the other members. A change shows to readers of this process at once
// (overlay.h), and nobody who changes something waits for the others; what waits instead is everything that
// leaves the process and may depend on a change (WhenKept), until all members that are in sync have it.
//
// Changes gather into a group until somebody waits for one of them, or there are enough, or some milliseconds
// are over; so the mutations of a client's batch, which is answered as a whole, are one group. One group is
// on its way to the others at a time, and what is changed meanwhile is the next one: what a round trip costs
// is paid once for all of it, and the others need not put groups into order. The store here gets a group
// behind the others, while the next is on its way to them. Changes that have not been kept yet are bounded: a
// task that changes more waits, first come first served.
//
// When a group cannot be kept the pipeline is over: nothing is changed any more, and what is withheld never
// leaves.
//
// Thread-safe.
#pragma once

#include <absl/functional/any_invocable.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "common/clock.h"
#include "common/task.h"
#include "server/kv/kv_store.h"
#include "server/replication/overlay.h"

namespace nacre::replication {

class Pipeline {
 public:
  static constexpr uint64_t kMostPending = 4 << 20;   // bytes that are changed and not kept
  static constexpr uint64_t kMostTogether = 1 << 20;  // bytes of a group, unless one change alone has more
  static constexpr uint64_t kEnough = 64 << 10;       // bytes that do not gather any more
  static constexpr Duration kGather = 5ms;

  // Changes that are made together, in order; of what they set several times, the last.
  struct Changes {
    std::vector<KvBatch::Op> ops;
    uint64_t bytes = 0;  // of keys and values
  };
  // Puts changes that all others have into `store`. An error is the end.
  using Store = absl::AnyInvocable<Task<Status>()>;
  // Ends when all other members have the changes, and `store` has all that were made before them. The
  // function that it returns is called at once; null: the changes are in `store` already. One at a time. An
  // error is the end.
  using Write = absl::AnyInvocable<Task<StatusOr<Store>>(Changes)>;

  // `start` runs a task and keeps this until it has ended.
  Pipeline(KvStore& store, Clock& clock, Write write, std::function<void(Task<void>)> start)
      : store_(store), clock_(clock), write_(std::move(write)), start_(std::move(start)), overlay_(store) {}

  // The store with all that has been changed.
  Overlay& view() { return overlay_; }

  // Returns when readers see the change. ENOSPC: refused, nothing is changed; UNAVAILABLE: it is over.
  Task<Status> Change(KvBatch batch);

  // Calls `done` with true when everything that was changed before this call is kept: at once, or later, in
  // the order of the calls. With false when it is over.
  using Done = absl::AnyInvocable<void(bool kept)>;
  void WhenKept(Done done);
  // The same. UNAVAILABLE: it is over.
  Task<Status> AwaitKept();

 private:
  struct Waiting {  // for its group
    KvBatch batch;
    uint64_t number = 0;
    uint64_t bytes = 0;
  };
  struct Withheld {
    uint64_t until = 0;  // this change is kept
    Done done;
  };

  bool HasRoom(uint64_t bytes) const;  // mutex_ held, as for the next
  bool Wanted() const;                 // a group is to be made of what waits
  Task<void> AwaitRoom(uint64_t bytes);
  Status Add(KvBatch batch, uint64_t bytes);
  void RunIfWanted(std::unique_lock<std::mutex> lock);
  Task<void> Run();
  Task<void> Finish(Store store, uint64_t last, uint64_t bytes);
  Task<void> Gather();
  struct Taken {
    std::vector<KvBatch::Op> ops;
    uint64_t bytes = 0;  // as they count for what is pending
    uint64_t last = 0;   // change
  };
  std::optional<Taken> Take();
  void Keep(uint64_t last, uint64_t bytes);
  void End(Status why);
  void Release(std::unique_lock<std::mutex> lock);

  KvStore& store_;
  Clock& clock_;
  Write write_;
  const std::function<void(Task<void>)> start_;
  Overlay overlay_;

  AsyncMutex door_;  // for those that wait for room
  std::mutex mutex_;
  std::deque<Waiting> waiting_;
  uint64_t waiting_bytes_ = 0;
  bool running_ = false;    // a group is on its way to the others
  bool gathering_ = false;  // Gather runs
  bool gathered_ = false;   // what waits has waited for long enough
  std::optional<Status> over_;
  uint64_t made_ = 0, kept_ = 0;  // the newest change, and the newest that is kept
  uint64_t pending_bytes_ = 0;    // of the changes between
  bool at_door_ = false;          // somebody waits for room: others do not overtake
  std::optional<OneShot<Unit>> room_;
  std::deque<Withheld> withheld_;
  bool releasing_ = false;
};

}  // namespace nacre::replication
