// The object behind a nacre_queue: many reads and writes under way, each of which ends by itself.
//
// The next task that runs puts together what was submitted: reads of one file become batches, which are
// read in as few requests as they need; so many small reads share the way to the servers and one wake-up.
// A batch that fails, lasts long, or of which one read is cancelled, is given up, and those of its reads that
// nothing speaks against begin again, each by itself. A write is a batch of its own. Thread-safe; kept by its
// tasks.
#pragma once

#include <nacre/nacre.h>

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "api/completions.h"
#include "api/extents.h"
#include "api/operation.h"
#include "api/outcome.h"
#include "common/cancellation.h"
#include "common/clock.h"
#include "common/task.h"
#include "transport/watchdog.h"

namespace nacre::api {

class Queue : public std::enable_shared_from_this<Queue> {
 public:
  static constexpr uint64_t kMaxDepth = 65536;

  // EINVAL: no such depth. EBADF: the client is being closed.
  static StatusOr<std::shared_ptr<Queue>> Open(std::shared_ptr<Client> client, uint64_t depth);

  const std::shared_ptr<Client>& client() const { return client_; }
  Completions& completions() { return completions_; }

  // Takes the first of them, as many as there is room for. EAGAIN: none. EINVAL, ENOTSUP: the array itself is
  // wrong, and none was taken; a request that is wrong is taken, and done with its error.
  Status Submit(const nacre_request* requests, size_t count, const nacre_io_options* options, size_t* taken);
  // Asks them to end early.
  void Cancel(uint64_t user_data);
  void CancelAll();
  // Ends the reads, waits until nobody touches the memory of any request, and forgets what was not taken.
  void Close();

 private:
  struct Request {
    uint64_t user_data = 0;
    Transfer transfer = Transfer::kRead;
    CheckedExtent extent;  // its buffer is in use until the request is done
    Duration deadline = kNoDeadline;
    bool alone = false;  // never again in a batch with others
    bool cancelled = false;
  };
  struct Batch : std::enable_shared_from_this<Batch> {
    Batch(std::shared_ptr<Queue> owner, Transfer way) : queue(std::move(owner)), transfer(way) {}

    const std::shared_ptr<Queue> queue;
    const Transfer transfer;
    std::vector<Request> requests;  // of one file, with one deadline; what is in them is guarded by mutex_
    uint64_t bytes = 0;
    CancellationPtr cancellation;
    Duration patience_ends = kNoDeadline;
    bool done = false;  // guarded by mutex_
  };
  using BatchPtr = std::shared_ptr<Batch>;
  using BuffersOnce = absl::flat_hash_map<uint64_t, Status>;

  Queue(std::shared_ptr<Client> client, size_t depth) : client_(std::move(client)), completions_(depth) {}

  Status Check(const nacre_request& raw, const CheckedExtent* before, BuffersOnce* looked_at,
               Request* request) const;
  void Enqueue(std::vector<Request> requests);
  void CancelThose(const std::function<bool(const Request&)>& meant);
  static Task<void> Dispatch(std::shared_ptr<Queue> self);
  std::vector<BatchPtr> CutBatches(std::vector<Completed>* cancelled);
  void Begin(const BatchPtr& batch);
  Duration Expire(Duration now);
  static Task<void> Run(BatchPtr batch);
  void Settle(Batch& batch, const Outcome& outcome);
  static bool MayBeginAgain(const Batch& batch, const Request& request, const Status& status);

  const std::shared_ptr<Client> client_;
  Completions completions_;
  std::shared_ptr<Watchdog> watchdog_;

  std::mutex mutex_;
  std::vector<Request> waiting_;  // for the next task that puts them together
  bool dispatching_ = false;      // such a task was started and has not looked yet
  bool closing_ = false;          // no read begins any more
  absl::flat_hash_set<BatchPtr> batches_;
};

}  // namespace nacre::api
