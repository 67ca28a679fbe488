#include "transport/verbs/transfer_plan.h"

#include <algorithm>

namespace nacre::verbs {

RemoteMemory::RemoteMemory(RemoteSpans spans) : spans_(std::move(spans)) {
  uint64_t end = 0;
  for (const RemoteSpan& span : spans_) ends_.push_back(end += span.length);
}

RemoteSpans RemoteMemory::Pieces(uint64_t offset, uint64_t length) const {
  RemoteSpans pieces;
  size_t i = static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), offset) - ends_.begin());
  for (; length > 0; ++i) {
    const RemoteSpan& span = spans_[i];
    const uint64_t within = offset - (ends_[i] - span.length);
    const uint64_t take = std::min(length, span.length - within);
    if (take > 0) pieces.push_back({span.address + within, take, span.key});
    offset += take;
    length -= take;
  }
  return pieces;
}

std::vector<TransferPart> PlanTransfer(std::span<const RemoteSpan> remote, std::span<const LocalPiece> local,
                                       TransferLimits limits) {
  std::vector<TransferPart> parts;
  size_t next = 0;
  uint64_t used = 0;  // of local[next]
  for (const RemoteSpan& span : remote) {
    uint64_t done = 0;
    while (done < span.length) {
      TransferPart part;
      part.remote_address = span.address + done;
      part.remote_key = static_cast<uint32_t>(span.key);
      while (done < span.length && part.bytes < limits.bytes && part.local.size() < limits.pieces) {
        const LocalPiece& piece = local[next];
        const auto take = static_cast<uint32_t>(
            std::min({piece.length - used, span.length - done, uint64_t{limits.bytes - part.bytes}}));
        if (take > 0) part.local.push_back({reinterpret_cast<uint64_t>(piece.data + used), take, piece.key});
        part.bytes += take;
        done += take;
        used += take;
        if (used == piece.length) ++next, used = 0;
      }
      parts.push_back(std::move(part));
    }
  }
  return parts;
}

}  // namespace nacre::verbs
