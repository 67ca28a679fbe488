// Reads or writes under way: what a future stands for, and what nacre_readv and nacre_writev wait for.
//
// One task for each file, which reads all extents of that file in one go; if that fails, each by itself, so
// that every extent has its own status. Few short ones go with those of other operations (small_reads.h). Or
// one which writes them (writer.h). A file's extents are finished when
// the task says so, or when they are cancelled and nobody touches the buffers any more, whichever is first.
// Thread-safe; kept by its tasks.
#pragma once

#include <nacre/nacre.h>

#include <absl/container/inlined_vector.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "api/event_fd.h"
#include "api/extents.h"
#include "api/few_map.h"
#include "api/outcome.h"
#include "common/cancellation.h"
#include "common/clock.h"
#include "gpu/stream_order.h"

namespace nacre::api {

enum class Transfer { kRead, kWrite };

class Operation : public std::enable_shared_from_this<Operation> {
 public:
  ~Operation();

  // `count` extents as nacre_readv takes them; nothing is done before Begin. EINVAL: the arrays themselves
  // are wrong; an extent that is wrong has its error in its result.
  static StatusOr<std::shared_ptr<Operation>> Make(Transfer transfer, const nacre_extent* extents,
                                                   size_t count, const nacre_io_options* options);

  // Once, or never. With an order: when the stream has arrived there; it is released at the end.
  void Begin(std::shared_ptr<gpu::StreamOrder> order = nullptr);

  bool writes() const { return transfer_ == Transfer::kWrite; }
  // The buffers of the extents that can be read or written.
  std::vector<std::shared_ptr<Buffer>> Buffers() const;

  // Whether it is done within the time; negative: waits for ever.
  bool Wait(Duration timeout);
  void Cancel(const Status& why);  // begun
  // When it is done, now if it is.
  void Notify(std::shared_ptr<EventFd> event);

  // Fills in the caller's results; the operation is done. Returns the first error, in full: results have room
  // for its beginning.
  Status Results(nacre_result* results, size_t count);

  // Null: it is being destroyed, hence done.
  std::shared_ptr<Operation> Share() { return weak_from_this().lock(); }

 private:
  // The extents of one file.
  struct Group {
    absl::InlinedVector<size_t, 1> indices;                   // of the results
    std::vector<CheckedExtent> extents;                       // until it begins
    absl::InlinedVector<std::shared_ptr<Buffer>, 1> buffers;  // in use, some more than once, until it is done
    CancellationPtr cancellation;
    bool done = false;
  };

  Operation(Transfer transfer, size_t count) : transfer_(transfer), outcomes_(count) {}
  Status Add(size_t index, const nacre_extent& raw);
  Status LookAt(const CheckedExtent& extent);
  void SetDeadline();
  void StartGroups();
  bool MayGoWithOthers(const std::vector<CheckedExtent>& extents) const;
  void ReadWithOthers(size_t group, SmallReads& reads, std::vector<CheckedExtent> extents);
  static Task<void> StartInTurn(std::shared_ptr<Operation> self);
  static Task<void> ReadGroup(std::shared_ptr<Operation> self, size_t group,
                              std::vector<CheckedExtent> extents);
  static Task<void> WriteGroup(std::shared_ptr<Operation> self, size_t group,
                               std::vector<CheckedExtent> extents);
  void Finish(Group& group, std::span<const ExtentOutcome> outcomes);

  const Transfer transfer_;
  bool begun_ = false;
  absl::InlinedVector<Group, 1> groups_;
  FewMap<File*, size_t> group_of_;
  FewMap<uint64_t, Status> looked_at_;  // whether the memory of these buffers is still there
  absl::InlinedVector<std::shared_ptr<Client>, 1> clients_;  // of the files
  Duration timeout_ = Duration::max();
  std::shared_ptr<gpu::StreamOrder> order_;
  std::unique_ptr<TimerHandle> timer_;

  std::mutex mutex_;
  std::condition_variable done_;
  Outcome outcomes_;
  size_t left_ = 0;  // groups
  std::vector<std::shared_ptr<EventFd>> events_;
};

}  // namespace nacre::api
