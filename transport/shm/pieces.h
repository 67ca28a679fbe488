// Where in the memory that one side shows to the other some bytes lie, as it travels in frames
// (proto/FORMAT.md). Pure functions; what arrives is checked here. Thread-safe.
#pragma once

#include <absl/container/inlined_vector.h>
#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "transport/shared_memory.h"

namespace nacre::shm {

struct Piece {
  uint32_t region = 0;  // in the order of the setup
  uint64_t offset = 0;
  uint64_t length = 0;

  bool operator==(const Piece&) const = default;
};

using Views = std::vector<std::shared_ptr<const SharedView>>;
using Pieces = absl::InlinedVector<iovec, 2>;  // a MiB mostly lies in one or two

void AppendPiece(const Piece& piece, std::string* out);

// The bytes themselves, in the views. EPROTO unless all pieces lie inside and are `total` bytes together.
StatusOr<Pieces> ParsePieces(std::string_view text, const Views& views, uint64_t total);

// A u32 number of pieces, the pieces, and what follows, which stays in *text.
std::string CountedPieces(std::string_view pieces);
StatusOr<Pieces> TakeCountedPieces(std::string* text, const Views& views, uint64_t total);

}  // namespace nacre::shm
