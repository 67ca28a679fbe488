// Reads under way: what a future stands for, and what nacre_readv waits for.
//
// One task for each file, which reads all extents of that file in one go; if that fails, each by itself, so
// that every extent has its own status. A file's extents are finished when the task says so, or when they are
// cancelled and nobody touches the buffers any more, whichever is first. Thread-safe; kept by its tasks.
#pragma once

#include <nacre/nacre.h>

#include <absl/container/flat_hash_map.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "api/extents.h"
#include "common/cancellation.h"
#include "common/clock.h"
#include "gpu/stream_order.h"

namespace nacre::api {

// How one extent went: what the caller gets, and the error with all of its text.
struct ExtentOutcome {
  nacre_result result = NACRE_RESULT_INIT;
  Status status = OkStatus();
};

class Operation : public std::enable_shared_from_this<Operation> {
 public:
  ~Operation();

  // `count` extents as nacre_readv takes them; nothing is read before Begin. EINVAL: the arrays themselves
  // are wrong; an extent that is wrong has its error in its result.
  static StatusOr<std::shared_ptr<Operation>> Make(const nacre_extent* extents, size_t count,
                                                   const nacre_io_options* options);

  // Once, or never. With an order: when the stream has arrived there; it is released at the end.
  void Begin(std::shared_ptr<gpu::StreamOrder> order = nullptr);

  // The buffers of the extents that can be read.
  std::vector<std::shared_ptr<Buffer>> Targets() const;

  // Whether it is done within the time; negative: waits for ever.
  bool Wait(Duration timeout);
  void Cancel(const Status& why);  // begun

  // Fills in the caller's results; the operation is done. Returns the first error, in full: results have room
  // for its beginning.
  Status Results(nacre_result* results, size_t count);

  // Null: it is being destroyed, hence done.
  std::shared_ptr<Operation> Share() { return weak_from_this().lock(); }

 private:
  // The extents of one file.
  struct Group {
    std::vector<size_t> indices;                   // of the results
    std::vector<CheckedExtent> extents;            // until it begins
    std::vector<std::shared_ptr<Buffer>> buffers;  // in use until it is done
    CancellationPtr cancellation;
    bool done = false;
  };
  using Outcome = std::vector<ExtentOutcome>;  // of a group's extents

  explicit Operation(size_t count) : outcomes_(count) {}
  Status Add(size_t index, const nacre_extent& raw);
  const Status& LookAt(const CheckedExtent& extent);
  void SetDeadline();
  void ReadGroups();
  static Task<void> ReadInTurn(std::shared_ptr<Operation> self);
  static Task<void> ReadGroup(std::shared_ptr<Operation> self, size_t group,
                              std::vector<CheckedExtent> extents);
  void Finish(Group& group, const Outcome& outcome);

  bool begun_ = false;
  std::vector<Group> groups_;
  absl::flat_hash_map<File*, size_t> group_of_;
  absl::flat_hash_map<uint64_t, Status> looked_at_;  // whether the memory of these buffers is still there
  std::vector<std::shared_ptr<Client>> clients_;     // of the files
  Duration timeout_ = Duration::max();
  std::shared_ptr<gpu::StreamOrder> order_;
  std::unique_ptr<TimerHandle> timer_;

  std::mutex mutex_;
  std::condition_variable done_;
  Outcome outcomes_;
  size_t left_ = 0;  // groups
};

// Fills in what an error says.
void SetError(const Status& status, nacre_result* result);

}  // namespace nacre::api
