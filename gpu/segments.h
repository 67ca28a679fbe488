// A copy as the copy engine sees it: pairs of contiguous device and host memory. Pure function.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/status.h"

namespace nacre::gpu {

struct Segment {
  uint64_t device = 0;
  std::byte* host = nullptr;
  size_t length = 0;
};

// Pairs two lists of pieces; what is contiguous on both sides is one segment. EINVAL unless both lists have
// the same total length.
StatusOr<std::vector<Segment>> PairPieces(std::span<const iovec> device, std::span<const iovec> host);

uint64_t TotalBytes(std::span<const iovec> pieces);

// Neighbours become one; empty pieces vanish.
std::vector<iovec> MergePieces(std::span<const iovec> pieces);

}  // namespace nacre::gpu
