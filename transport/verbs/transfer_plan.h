// How a transfer between pieces of local memory and a range of the caller's memory is cut into work requests.
// Pure functions. RemoteMemory is immutable after construction, hence thread-safe.
#pragma once

#include <span>
#include <vector>

#include "transport/verbs/channel.h"
#include "transport/verbs/message.h"

namespace nacre::verbs {

// The concatenation of the spans that a call names.
class RemoteMemory {
 public:
  explicit RemoteMemory(RemoteSpans spans);

  uint64_t size() const { return ends_.empty() ? 0 : ends_.back(); }
  // The pieces of [offset, offset + length), which must be inside.
  RemoteSpans Pieces(uint64_t offset, uint64_t length) const;

 private:
  const RemoteSpans spans_;
  absl::InlinedVector<uint64_t, 2> ends_;  // where each span ends in the whole
};

struct LocalPiece {
  std::byte* data = nullptr;
  uint64_t length = 0;
  uint32_t key = 0;
};
using LocalPieces = absl::InlinedVector<LocalPiece, 2>;

struct TransferLimits {
  uint32_t bytes = 0;   // of a work request
  uint32_t pieces = 1;  // of local memory in it
};

// Both sides have the same total length.
std::vector<TransferPart> PlanTransfer(std::span<const RemoteSpan> remote, std::span<const LocalPiece> local,
                                       TransferLimits limits);

}  // namespace nacre::verbs
