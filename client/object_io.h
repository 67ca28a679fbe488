// Moves file bytes between memory and objects: maps extents by the layout, asks all OSTs at once, checks what
// arrives.
//
// Stateless but for its references; thread-safe. `epoch`: Targets::Call. A block that does not match its
// checksum is asked for twice more; then the read fails with EIO, the place is logged, and `problem` is told.
// Memory may be anywhere and of any alignment; a device's is only read into, and checked by the device.
#pragma once

#include <absl/container/inlined_vector.h>

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "client/layout.h"
#include "client/targets.h"
#include "common/ids.h"
#include "common/status.h"
#include "common/task.h"
#include "proto/object.pb.h"
#include "transport/transport.h"

namespace nacre::client {

// Bytes of a file and where they are (to be) in memory.
struct IoPiece {
  uint64_t file_offset = 0;
  MemorySpan memory;
};

// How often each of these OSTs may have lost what was not synced (proto/object.proto).
using Losses = std::map<OstIndex, uint64_t>;

struct WriteResult {
  Status status;
  int64_t blocks_delta = 0;  // of what succeeded
  Losses osts;               // touched, with what each had lost by then
};

struct WriteMode {
  bool sync = false;
  bool reserved = false;  // the space was set aside with Targets::Reserve, one block for each block touched
};

class MemoryWork;  // client/memory_work.h

class ObjectIo {
 public:
  using Problem = std::function<void(Fid, std::string)>;

  ObjectIo(Targets& targets, bool verify, Problem problem);

  // Fills every piece; what no object holds reads as zeros. `*complete` (may be null) tells whether objects
  // held everything that was asked for: if not, they may just have been replaced by a truncation.
  Task<Status> Read(uint64_t epoch, Fid fid, LayoutPtr layout, std::vector<IoPiece> pieces, bool* complete,
                    CancellationPtr cancellation = nullptr);  // null: that of the task's chain

  Task<WriteResult> Write(uint64_t epoch, Fid fid, LayoutPtr layout, std::vector<IoPiece> pieces,
                          WriteMode mode);

  // One request without data for one object.
  Task<StatusOr<proto::ObjectReply>> Send(uint64_t epoch, proto::ObjectRequest request);

  // Everything that was written to these OSTs is on stable storage, unless it was lost before: the answer
  // says how often that may have happened. It says nothing of those that have left with nothing on them.
  Task<StatusOr<Losses>> Sync(uint64_t epoch, std::set<OstIndex> osts);

 private:
  struct Part;   // contiguous in an object, spread over memory
  struct Batch;  // one request

  static std::vector<Batch> Plan(const LayoutMap& layout, const std::vector<IoPiece>& pieces,
                                 uint64_t batch_bytes, size_t most_parts);
  Task<Status> ReadBatch(uint64_t epoch, Fid fid, LayoutPtr layout, Batch batch, bool* complete,
                         CancellationPtr cancellation);
  Task<Status> ReadOnce(uint64_t epoch, Fid fid, const LayoutMap& layout, const Batch& batch, bool last,
                        std::vector<size_t>* again, bool* complete, CancellationPtr cancellation);
  Task<WriteResult> WriteBatch(uint64_t epoch, Fid fid, LayoutPtr layout, Batch batch, WriteMode mode);
  using MadeSums = std::span<const std::optional<uint32_t>>;  // of the blocks of a part, by the transport

  using Sums = absl::InlinedVector<uint32_t, 1>;  // of the blocks that have come; stay in place

  void Examine(const Part& part, const proto::ReadRangeResult& result, MadeSums made, MemoryWork* work,
               Sums* sums) const;
  static void SumTheRest(const Part& part, uint64_t length, MadeSums made, MemoryWork* work, Sums* sums);
  static void SumBlocks(const Part& part, uint64_t length, MemoryWork* work, Sums* sums);
  bool Matches(Fid fid, const LayoutMap& layout, OstIndex ost, const Part& part,
               const proto::ReadRangeResult& result, const Sums& sums, bool last);

  Targets& targets_;
  const bool verify_;
  const Problem problem_;
};

}  // namespace nacre::client
