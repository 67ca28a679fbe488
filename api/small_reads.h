// Small reads that begin at about the same time go as one: they share requests to the servers, copies and
// wake-ups, which cost more than their bytes.
//
// A read begins at once while few batches are under way; else it waits until one of them has ended, and goes
// with all those that wait by then, or until it has waited for a millisecond: a batch may have met a server
// that is away. So there is no delay where there is little to do, and the batches grow with what there is.
//
// A batch that fails, lasts long, or of which one read is cancelled, is given up, and the others of its reads
// begin again, each by itself (as those of a Queue). Thread-safe; kept by its tasks.
#pragma once

#include <absl/container/flat_hash_set.h>
#include <absl/functional/any_invocable.h>

#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "api/connection.h"
#include "api/outcome.h"
#include "common/cancellation.h"
#include "common/clock.h"
#include "common/task.h"
#include "transport/watchdog.h"

namespace nacre {
class MemoryDevice;
}

namespace nacre::api {

class File;
struct CheckedExtent;

class SmallReads : public std::enable_shared_from_this<SmallReads> {
 public:
  using Done = absl::AnyInvocable<void(std::span<const ExtentOutcome>)>;

  static std::shared_ptr<SmallReads> Make(std::shared_ptr<Connection> connection);
  ~SmallReads();
  SmallReads(const SmallReads&) = delete;
  SmallReads& operator=(const SmallReads&) = delete;

  // Whether these extents of one file are few and short enough to go with others.
  static bool Suit(const std::vector<CheckedExtent>& extents);

  // Reads them. `done` is told how they went, once, unless the read is cancelled before.
  void Add(std::vector<CheckedExtent> extents, CancellationPtr cancellation, Done done);
  // This read has been cancelled: the batch that it is in ends early.
  void Stop(const CancellationPtr& cancellation);

 private:
  struct Read {
    std::vector<CheckedExtent> extents;
    CancellationPtr cancellation;
    Done done;
    Duration since{0};           // it waits
    Cancellation::Use use = {};  // while its batch is under way
  };
  struct Batch {
    std::vector<Read> reads;
    size_t extents = 0;
    uint64_t bytes = 0;
    CancellationPtr cancellation;
    Duration patience_ends = kNoDeadline;
    bool settled = false;  // guarded by mutex_
  };
  using BatchPtr = std::shared_ptr<Batch>;

  explicit SmallReads(std::shared_ptr<Connection> connection) : connection_(std::move(connection)) {}

  static Task<void> Dispatch(std::shared_ptr<SmallReads> self);
  std::vector<BatchPtr> CutBatches(std::vector<Read>* cancelled);
  void Begin(const BatchPtr& batch);
  static Task<void> Run(std::shared_ptr<SmallReads> self, BatchPtr batch);
  static Task<void> RunAlone(Read read);
  void Settle(const BatchPtr& batch, std::span<const ExtentOutcome> outcomes, const Status& status);
  Duration Expire(Duration now);

  const std::shared_ptr<Connection> connection_;
  std::mutex mutex_;
  std::vector<Read> waiting_;
  bool dispatching_ = false;  // a task that takes what waits was started and has not looked yet
  absl::flat_hash_set<BatchPtr> batches_;
  std::shared_ptr<Watchdog> watchdog_;
};

}  // namespace nacre::api
