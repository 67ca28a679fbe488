#include "gpu/segments.h"

#include <absl/strings/str_format.h>

#include <algorithm>
#include <cerrno>

#include "transport/memory_device.h"

namespace nacre::gpu {
namespace {

constexpr size_t kPinUnit = MemoryDevice::kPinUnit;

// Walks through pieces, any number of bytes at a time.
class PieceCursor {
 public:
  explicit PieceCursor(std::span<const iovec> pieces) : pieces_(pieces) { SkipEmpty(); }

  bool AtEnd() const { return pieces_.empty(); }
  std::byte* data() const { return static_cast<std::byte*>(pieces_.front().iov_base) + into_; }
  size_t left() const { return pieces_.front().iov_len - into_; }

  void Advance(size_t length) {
    into_ += length;
    SkipEmpty();
  }

 private:
  void SkipEmpty() {
    while (!pieces_.empty() && into_ == pieces_.front().iov_len) {
      pieces_ = pieces_.subspan(1);
      into_ = 0;
    }
  }

  std::span<const iovec> pieces_;
  size_t into_ = 0;
};

size_t TotalLength(std::span<const iovec> pieces) {
  size_t total = 0;
  for (const iovec& piece : pieces) total += piece.iov_len;
  return total;
}

}  // namespace

StatusOr<std::vector<Segment>> PairPieces(std::span<const iovec> device, std::span<const iovec> host) {
  if (size_t to = TotalLength(device), from = TotalLength(host); to != from)
    return ErrnoError(EINVAL,
                      absl::StrFormat("a copy of %d bytes of device memory and %d of host memory", to, from));
  std::vector<Segment> segments;
  segments.reserve(std::max(device.size(), host.size()));
  PieceCursor on_device(device), on_host(host);
  while (!on_device.AtEnd()) {
    const size_t to_pin_end = kPinUnit - reinterpret_cast<uint64_t>(on_host.data()) % kPinUnit;
    size_t length = std::min({on_device.left(), on_host.left(), to_pin_end});
    auto address = reinterpret_cast<uint64_t>(on_device.data());
    Segment* last = segments.empty() ? nullptr : &segments.back();
    if (last != nullptr && last->device + last->length == address &&
        last->host + last->length == on_host.data() && to_pin_end != kPinUnit)
      last->length += length;
    else
      segments.push_back({address, on_host.data(), length});
    on_device.Advance(length);
    on_host.Advance(length);
  }
  return segments;
}

uint64_t TotalBytes(std::span<const iovec> pieces) {
  uint64_t total = 0;
  for (const iovec& piece : pieces) total += piece.iov_len;
  return total;
}

std::vector<iovec> MergePieces(std::span<const iovec> pieces) {
  std::vector<iovec> merged;
  for (PieceCursor cursor(pieces); !cursor.AtEnd(); cursor.Advance(cursor.left())) {
    if (!merged.empty() &&
        static_cast<std::byte*>(merged.back().iov_base) + merged.back().iov_len == cursor.data())
      merged.back().iov_len += cursor.left();
    else
      merged.push_back({cursor.data(), cursor.left()});
  }
  return merged;
}

}  // namespace nacre::gpu
