#include "client/object_seek.h"

#include <algorithm>
#include <cerrno>
#include <vector>

#include "rpc/convert.h"

namespace nacre::client {
namespace {

// The first byte at or behind `offset` that any object has; UINT64_MAX if none has.
Task<StatusOr<uint64_t>> NextData(ObjectIo& io, uint64_t epoch, LayoutPtr layout, uint64_t offset) {
  std::vector<Task<StatusOr<proto::ObjectReply>>> calls;
  for (uint32_t stripe = 0; stripe < layout->stripe_count(); ++stripe) {
    proto::ObjectRequest request;
    request.set_ost(layout->Ost(stripe));
    *request.mutable_seek()->mutable_object() = ToProto(layout->Object(stripe));
    request.mutable_seek()->set_offset(layout->ObjectEnd(stripe, offset));
    calls.push_back(io.Send(epoch, std::move(request)));
  }
  auto replies = co_await WhenAll(std::move(calls));
  uint64_t nearest = UINT64_MAX;
  for (uint32_t stripe = 0; stripe < layout->stripe_count(); ++stripe) {
    if (!replies[stripe].ok()) co_return replies[stripe].status();
    const proto::SeekObjectReply& found = replies[stripe]->seek();
    if (found.found()) nearest = std::min(nearest, layout->FileOffset(stripe, found.offset()));
  }
  co_return nearest;
}

// The first byte at or behind `offset` that no object has: stripe unit by stripe unit, each object asked how
// far its data reaches.
Task<StatusOr<uint64_t>> NextHole(ObjectIo& io, uint64_t epoch, LayoutPtr layout, uint64_t offset,
                                  uint64_t size) {
  std::vector<uint64_t> data_until(layout->stripe_count(), 0);  // object offsets
  while (offset < size) {
    StripePiece piece = layout->At(offset, size - offset);
    if (data_until[piece.stripe] <= piece.object_offset) {
      proto::ObjectRequest request;
      request.set_ost(piece.ost);
      *request.mutable_seek()->mutable_object() = ToProto(layout->Object(piece.stripe));
      request.mutable_seek()->set_offset(piece.object_offset);
      request.mutable_seek()->set_hole(true);
      CO_ASSIGN_OR_RETURN(proto::ObjectReply reply, co_await io.Send(epoch, std::move(request)));
      data_until[piece.stripe] = reply.seek().found() ? reply.seek().offset() : piece.object_offset;
    }
    if (data_until[piece.stripe] < piece.object_offset + piece.length) {
      co_return offset + (std::max(data_until[piece.stripe], piece.object_offset) - piece.object_offset);
    }
    offset += piece.length;
  }
  co_return size;
}

}  // namespace

Task<StatusOr<uint64_t>> SeekInObjects(ObjectIo& io, uint64_t epoch, LayoutPtr layout, uint64_t size,
                                       uint64_t offset, bool hole) {
  if (offset >= size)
    co_return ErrnoError(
        ENXIO, absl::StrFormat("seek: offset %d is not before the end of the file, %d", offset, size));
  if (layout == nullptr) co_return hole ? size : offset;
  if (!hole) {
    CO_ASSIGN_OR_RETURN(uint64_t data, co_await NextData(io, epoch, layout, offset));
    if (data >= size) co_return ErrnoError(ENXIO, absl::StrFormat("seek: no data behind offset %d", offset));
    co_return data;
  }
  CO_ASSIGN_OR_RETURN(uint64_t found, co_await NextHole(io, epoch, layout, offset, size));
  co_return std::min(found, size);
}

}  // namespace nacre::client
