// Fallocate, SEEK_DATA and SEEK_HOLE, copy_file_range.
#include <fcntl.h>
#include <linux/falloc.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "client/core.h"

namespace nacre::client {
namespace {

constexpr uint64_t kCopyStep = 1 << 20;

// Each object's part of an extent: contiguous in the object, whatever the stripes.
struct ObjectExtent {
  uint32_t stripe;
  uint64_t begin;
  uint64_t end;
};

std::vector<ObjectExtent> ObjectExtents(const LayoutMap& layout, uint64_t offset, uint64_t length) {
  std::vector<ObjectExtent> extents;
  for (uint32_t stripe = 0; stripe < layout.stripe_count(); ++stripe) {
    uint64_t begin = layout.ObjectEnd(stripe, offset);
    uint64_t end = layout.ObjectEnd(stripe, offset + length);
    if (begin < end) extents.push_back({stripe, begin, end});
  }
  return extents;
}

}  // namespace

Task<Status> Core::Fallocate(HandlePtr handle, int mode, uint64_t offset, uint64_t length) {
  NACRE_ENTER(pass);
  CO_RETURN_IF_ERROR(CheckHandle(*handle));
  if (!handle->writable()) co_return ErrnoError(EBADF, "fallocate: the file is open for reading only");
  if (length == 0 || offset > INT64_MAX || length > INT64_MAX - offset) {
    co_return ErrnoError(EINVAL, absl::StrFormat("fallocate [%d, +%d): bad range", offset, length));
  }
  const bool keep = (mode & FALLOC_FL_KEEP_SIZE) != 0;
  const bool punch = mode == (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE);
  const bool zero = (mode & ~FALLOC_FL_KEEP_SIZE) == FALLOC_FL_ZERO_RANGE;
  if (!punch && !zero && (mode & ~FALLOC_FL_KEEP_SIZE) != 0) {
    co_return ErrnoError(EOPNOTSUPP, absl::StrFormat("fallocate: mode 0x%x is not supported", mode));
  }
  InodePtr inode = handle->inode;
  RangeLock::Guard range = co_await inode->range.LockUnlessCancelled(0, RangeLock::kEnd, true);
  if (!range) co_return GivenUp();
  CO_RETURN_IF_ERROR(co_await TellCut(inode));
  CO_RETURN_IF_ERROR(co_await LoadFile(inode));
  if (MayHaveCapability(*inode)) CO_RETURN_IF_ERROR(co_await TakeCapability(inode));
  uint64_t size = 0;
  bool inline_data = false;
  {
    std::lock_guard lock(inode->mutex);
    size = inode->Size();
    inline_data = inode->attr.inline_data();
  }
  const uint64_t end = keep ? std::min(offset + length, size) : offset + length;
  if (inline_data) {
    if (cached()) {
      CO_RETURN_IF_ERROR(co_await MoveOut(inode));
    } else {
      CO_RETURN_IF_ERROR(co_await MoveOutThrough(inode));
    }
  }
  if (punch || zero) {
    CO_RETURN_IF_ERROR(co_await Punch(inode, offset, length));
  }
  if (!punch) CO_RETURN_IF_ERROR(co_await Preallocate(inode, offset, length));
  NoteWrite(*inode, handle->caller, punch || keep ? 0 : std::max(end, size));
  {
    std::lock_guard lock(inode->mutex);
    if (!punch && !keep) inode->pending.sent_size = std::max(inode->pending.sent_size, end);
  }
  co_return co_await SendPending(inode);
}

// The range reads as zeros and takes no space. Locked by the caller.
Task<Status> Core::Punch(InodePtr inode, uint64_t offset, uint64_t length) {
  CO_RETURN_IF_ERROR(co_await SendData(inode, offset, offset + length));
  DropData(*inode, offset, offset + length);
  co_return co_await ForEachObject(inode, offset, length,
                                   [](const ObjectId& object, uint64_t begin, uint64_t end, Fid) {
                                     proto::ObjectRequest request;
                                     *request.mutable_punch()->mutable_object() = ToProto(object);
                                     request.mutable_punch()->set_offset(begin);
                                     request.mutable_punch()->set_length(end - begin);
                                     return request;
                                   });
}

Task<Status> Core::Preallocate(InodePtr inode, uint64_t offset, uint64_t length) {
  co_return co_await ForEachObject(inode, offset, length,
                                   [](const ObjectId& object, uint64_t begin, uint64_t end, Fid fid) {
                                     proto::ObjectRequest request;
                                     *request.mutable_preallocate()->mutable_object() = ToProto(object);
                                     *request.mutable_preallocate()->mutable_parent() = ToProto(fid);
                                     request.mutable_preallocate()->set_offset(begin);
                                     request.mutable_preallocate()->set_length(end - begin);
                                     return request;
                                   });
}

// Sends a request for each object's part of the extent, all at once.
Task<Status> Core::ForEachObject(InodePtr inode, uint64_t offset, uint64_t length, ObjectRequestMaker make) {
  CO_ASSIGN_OR_RETURN(FileContent file, co_await LoadContent(inode));
  LayoutPtr layout = file.layout;
  if (layout == nullptr) {
    co_return ErrnoError(EBUSY,
                         absl::StrFormat("file %s was truncated by another client meanwhile: try again",
                                         inode->fid.ToString()));
  }
  std::vector<Task<StatusOr<proto::ObjectReply>>> calls;
  std::vector<OstIndex> osts;
  for (const ObjectExtent& extent : ObjectExtents(*layout, offset, length)) {
    proto::ObjectRequest request = make(layout->Object(extent.stripe), extent.begin, extent.end, inode->fid);
    request.set_ost(layout->Ost(extent.stripe));
    osts.push_back(layout->Ost(extent.stripe));
    calls.push_back(io_->Send(epoch_, std::move(request)));
  }
  auto replies = co_await WhenAll(std::move(calls));
  int64_t delta = 0;
  Status first;
  Losses touched;
  for (size_t i = 0; i < replies.size(); ++i) {
    if (!replies[i].ok()) {
      if (first.ok()) first = replies[i].status();
      continue;
    }
    delta += replies[i]->write().blocks_delta();
    touched.emplace(osts[i], replies[i]->losses());
  }
  durability_->Written(inode, touched);
  std::lock_guard lock(inode->mutex);
  inode->pending.blocks_delta += delta;
  co_return first;
}

// --- seeking ---

Task<StatusOr<uint64_t>> Core::Seek(HandlePtr handle, uint64_t offset, int whence) {
  NACRE_ENTER(pass);
  CO_RETURN_IF_ERROR(CheckHandle(*handle));
  if (whence != SEEK_DATA && whence != SEEK_HOLE)
    co_return ErrnoError(EINVAL, absl::StrFormat("seek: whence %d", whence));
  InodePtr inode = handle->inode;
  CO_RETURN_IF_ERROR(co_await LoadFile(inode));
  CO_RETURN_IF_ERROR(co_await SendData(inode, 0, UINT64_MAX));  // the objects know best
  LayoutPtr layout;
  uint64_t size = 0;
  {
    std::lock_guard lock(inode->mutex);
    size = inode->Size();
    if (!inode->Inline()) layout = inode->layout;
  }
  if (offset >= size)
    co_return ErrnoError(
        ENXIO, absl::StrFormat("seek: offset %d is not before the end of the file, %d", offset, size));
  const bool hole = whence == SEEK_HOLE;
  if (layout == nullptr) co_return hole ? size : offset;
  if (!hole) {
    CO_ASSIGN_OR_RETURN(uint64_t data, co_await NextData(layout, offset));
    if (data >= size) co_return ErrnoError(ENXIO, absl::StrFormat("seek: no data behind offset %d", offset));
    co_return data;
  }
  CO_ASSIGN_OR_RETURN(uint64_t found, co_await NextHole(layout, offset, size));
  co_return std::min(found, size);
}

// The first byte at or behind `offset` that any object has; UINT64_MAX if none has.
Task<StatusOr<uint64_t>> Core::NextData(LayoutPtr layout, uint64_t offset) {
  std::vector<Task<StatusOr<proto::ObjectReply>>> calls;
  for (uint32_t stripe = 0; stripe < layout->stripe_count(); ++stripe) {
    proto::ObjectRequest request;
    request.set_ost(layout->Ost(stripe));
    *request.mutable_seek()->mutable_object() = ToProto(layout->Object(stripe));
    request.mutable_seek()->set_offset(layout->ObjectEnd(stripe, offset));
    calls.push_back(io_->Send(epoch_, std::move(request)));
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
Task<StatusOr<uint64_t>> Core::NextHole(LayoutPtr layout, uint64_t offset, uint64_t size) {
  std::vector<uint64_t> data_until(layout->stripe_count(), 0);  // object offsets
  while (offset < size) {
    StripePiece piece = layout->At(offset, size - offset);
    if (data_until[piece.stripe] <= piece.object_offset) {
      proto::ObjectRequest request;
      request.set_ost(piece.ost);
      *request.mutable_seek()->mutable_object() = ToProto(layout->Object(piece.stripe));
      request.mutable_seek()->set_offset(piece.object_offset);
      request.mutable_seek()->set_hole(true);
      CO_ASSIGN_OR_RETURN(proto::ObjectReply reply, co_await io_->Send(epoch_, std::move(request)));
      data_until[piece.stripe] = reply.seek().found() ? reply.seek().offset() : piece.object_offset;
    }
    if (data_until[piece.stripe] < piece.object_offset + piece.length) {
      co_return offset + (std::max(data_until[piece.stripe], piece.object_offset) - piece.object_offset);
    }
    offset += piece.length;
  }
  co_return size;
}

// --- copying ---

Task<StatusOr<size_t>> Core::CopyRange(HandlePtr from, uint64_t from_offset, HandlePtr to, uint64_t to_offset,
                                       size_t size) {
  size_t done = 0;
  while (done < size) {
    size_t step = std::min<size_t>(kCopyStep, size - done);
    auto data = co_await Read(from, from_offset + done, step);
    if (!data.ok() && done == 0) co_return data.status();
    if (!data.ok() || data->size == 0) break;
    auto written = co_await Write(to, to_offset + done, data->pieces);
    if (!written.ok() && done == 0) co_return written.status();
    if (!written.ok()) break;
    done += *written;
    if (*written < step) break;
  }
  co_return done;
}

}  // namespace nacre::client
