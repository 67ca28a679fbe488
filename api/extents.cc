#include "api/extents.h"

#include <absl/strings/str_format.h>

#include <algorithm>
#include <cerrno>
#include <optional>

namespace nacre::api {
namespace {

constexpr uint64_t kMaxRows = 4 << 20;  // each takes memory while the read lasts

// Where rows end that begin at `offset`; nothing: beyond all numbers.
std::optional<uint64_t> End(uint64_t offset, uint64_t rows, uint64_t stride, uint64_t length) {
  uint64_t end = 0;
  const bool overflow = __builtin_mul_overflow(rows - 1, stride, &end) ||
                        __builtin_add_overflow(end, offset, &end) ||
                        __builtin_add_overflow(end, length, &end);
  return overflow ? std::nullopt : std::optional(end);
}

Status CheckRows(nacre_extent* extent) {
  if (extent->rows <= 1) {
    extent->rows = 1;
    return OkStatus();
  }
  if (extent->buffer_stride == 0) extent->buffer_stride = extent->length;
  if (extent->file_stride < extent->length || extent->buffer_stride < extent->length) {
    return ErrnoError(EINVAL,
                      absl::StrFormat("rows of %d bytes overlap with strides of %d in the file and %d "
                                      "in the buffer",
                                      extent->length, extent->file_stride, extent->buffer_stride));
  }
  if (extent->file_stride == extent->length && extent->buffer_stride == extent->length &&
      extent->length <= UINT64_MAX / extent->rows) {
    extent->length *= extent->rows;
    extent->rows = 1;
  }
  if (extent->rows <= kMaxRows) return OkStatus();
  return ErrnoError(
      EINVAL, absl::StrFormat("%d rows in one extent; %d are the most: use several", extent->rows, kMaxRows));
}

Status CheckPlace(const CheckedExtent& extent) {
  const nacre_extent& raw = extent.raw;
  const auto in_file = End(raw.offset, raw.rows, raw.file_stride, raw.length);
  if (!in_file || *in_file > INT64_MAX)
    return ErrnoError(EINVAL, absl::StrFormat("an extent at %d of the file: too far", raw.offset));
  const uint64_t size = extent.buffer->region()->size();
  const auto in_buffer = End(raw.buffer_offset, raw.rows, raw.buffer_stride, raw.length);
  if (in_buffer && *in_buffer <= size) return OkStatus();
  return ErrnoError(EINVAL, absl::StrFormat("%d rows of %d bytes at %d do not fit into the span, or into the "
                                            "buffer of %d bytes",
                                            raw.rows, raw.length, raw.buffer_offset, size));
}

// The buffer {0}: the buffer's offset is an address.
StatusOr<CheckedExtent> PlaceLoose(CheckedExtent extent) {
  nacre_extent& raw = extent.raw;
  RETURN_IF_ERROR(CheckRows(&raw));
  const uint64_t address = raw.buffer_offset;
  const auto end = End(address, raw.rows, raw.buffer_stride, raw.length);
  if (address == 0 || !end) {
    return ErrnoError(EFAULT, absl::StrFormat("%d rows of %d bytes at address 0x%x: no buffer is given, so "
                                              "buffer_offset is an address",
                                              raw.rows, raw.length, address));
  }
  const std::shared_ptr<Client>& client = extent.file->client();
  const uint64_t size = std::max<uint64_t>(*end - address, 1);
  ASSIGN_OR_RETURN(extent.buffer,
                   client->loose_memory().Find(client, reinterpret_cast<void*>(address), size));
  raw.buffer_offset = address - reinterpret_cast<uint64_t>(extent.buffer->region()->data());
  RETURN_IF_ERROR(CheckPlace(extent));
  return extent;
}

}  // namespace

void CheckedExtent::AppendPieces(std::vector<client::ReadPiece>* pieces) const {
  for (uint64_t row = 0; row < raw.rows; ++row) {
    pieces->push_back({raw.offset + row * raw.file_stride,
                       {buffer->region(), raw.buffer_offset + row * raw.buffer_stride, raw.length}});
  }
}

StatusOr<CheckedExtent> CheckExtent(const nacre_extent& raw, const CheckedExtent* before) {
  CheckedExtent extent;
  extent.raw = raw;
  if (before != nullptr && before->raw.file.id == raw.file.id) {
    extent.file = before->file;
  } else {
    ASSIGN_OR_RETURN(extent.file, FindFile(raw.file));
  }
  if (raw.buffer.id == 0) return PlaceLoose(std::move(extent));
  if (before != nullptr && before->raw.buffer.id == raw.buffer.id) {
    extent.buffer = before->buffer;
  } else {
    ASSIGN_OR_RETURN(extent.buffer, FindBuffer(raw.buffer));
  }
  if (extent.file->client() != extent.buffer->client()) {
    return ErrnoError(EINVAL,
                      absl::StrFormat("the buffer was registered with another client than the one that "
                                      "opened %s",
                                      extent.file->path()));
  }
  RETURN_IF_ERROR(CheckRows(&extent.raw));
  RETURN_IF_ERROR(CheckPlace(extent));
  return extent;
}

Status CheckTarget(const CheckedExtent& extent) {
  if (extent.buffer->traits().writable) return OkStatus();
  return ErrnoError(EFAULT,
                    "the buffer's memory is read-only in this process: it can be written to a file, not "
                    "read into");
}

}  // namespace nacre::api
