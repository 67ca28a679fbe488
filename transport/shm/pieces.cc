#include "transport/shm/pieces.h"

#include <absl/strings/str_format.h>

#include <bit>
#include <cerrno>
#include <cstring>

#include "transport/tcp/frame.h"

namespace nacre::shm {
namespace {

static_assert(std::endian::native == std::endian::little, "pieces are written without byte swaps");

// As the bytes lie on the wire.
struct WirePiece {
  uint32_t region;
  uint32_t reserved;
  uint64_t offset;
  uint64_t length;
};
static_assert(sizeof(WirePiece) == kSharedPieceSize);

StatusOr<iovec> Find(const WirePiece& piece, const Views& views) {
  if (piece.region >= views.size() || piece.reserved != 0) {
    return ErrnoError(
        EPROTO, absl::StrFormat("memory in region %d, of which there are %d", piece.region, views.size()));
  }
  const std::span<const std::byte> bytes = views[piece.region]->bytes();
  if (piece.offset > bytes.size() || piece.length > bytes.size() - piece.offset) {
    return ErrnoError(EPROTO, absl::StrFormat("%d bytes at %d of region %d, which has %d bytes", piece.length,
                                              piece.offset, piece.region, bytes.size()));
  }
  return iovec{const_cast<std::byte*>(bytes.data()) + piece.offset, piece.length};
}

}  // namespace

void AppendPiece(const Piece& piece, std::string* out) {
  const WirePiece wire{piece.region, 0, piece.offset, piece.length};
  out->append(reinterpret_cast<const char*>(&wire), sizeof wire);
}

StatusOr<Pieces> ParsePieces(std::string_view text, const Views& views, uint64_t total) {
  if (text.size() % sizeof(WirePiece) != 0) {
    return ErrnoError(EPROTO, absl::StrFormat("pieces of memory that take %d bytes, no multiple of %d",
                                              text.size(), sizeof(WirePiece)));
  }
  Pieces pieces;
  pieces.reserve(text.size() / sizeof(WirePiece));
  uint64_t left = total;
  for (; !text.empty(); text.remove_prefix(sizeof(WirePiece))) {
    WirePiece wire;
    std::memcpy(&wire, text.data(), sizeof wire);
    ASSIGN_OR_RETURN(const iovec piece, Find(wire, views));
    if (piece.iov_len > left) break;
    left -= piece.iov_len;
    pieces.push_back(piece);
  }
  if (left == 0 && text.empty()) return pieces;
  return ErrnoError(EPROTO, absl::StrFormat("pieces of memory that are not %d bytes together", total));
}

std::string CountedPieces(std::string_view pieces) {
  const auto count = static_cast<uint32_t>(pieces.size() / sizeof(WirePiece));
  std::string text(reinterpret_cast<const char*>(&count), sizeof count);
  text += pieces;
  return text;
}

StatusOr<Pieces> TakeCountedPieces(std::string* text, const Views& views, uint64_t total) {
  uint32_t count = 0;
  if (text->size() < sizeof count) return ErrnoError(EPROTO, "a call without the pieces that it shows");
  std::memcpy(&count, text->data(), sizeof count);
  if (count > kMaxSharedPieces || text->size() - sizeof count < count * sizeof(WirePiece)) {
    return ErrnoError(EPROTO, absl::StrFormat("%d pieces of memory in %d bytes", count, text->size()));
  }
  const std::string_view pieces(text->data() + sizeof count, count * sizeof(WirePiece));
  ASSIGN_OR_RETURN(Pieces found, ParsePieces(pieces, views, total));
  text->erase(0, sizeof count + pieces.size());
  return found;
}

}  // namespace nacre::shm
