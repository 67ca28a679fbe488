// Fallocate, SEEK_DATA and SEEK_HOLE, copy_file_range.
#include <fcntl.h>
#include <linux/falloc.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "client/core.h"
#include "client/object_seek.h"

namespace nacre::client {
namespace {

constexpr uint64_t kCopyStep = 1 << 20;

}  // namespace

Task<Status> Core::Fallocate(HandlePtr handle, int mode, uint64_t offset, uint64_t length) {
  NACRE_ENTER(pass);
  CO_RETURN_IF_ERROR(entrance_.Check(*handle));
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
  RangeLock::Guard range = co_await moving_out_->LockWhole(inode, MayGiveUp::kYes);
  if (!range) co_return GivenUp();
  CO_RETURN_IF_ERROR(co_await telling_->TellCut(inode));
  CO_RETURN_IF_ERROR(co_await mds_->LoadFile(inode));
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
    if (HoldsData(*inode)) {
      CO_RETURN_IF_ERROR(co_await moving_out_->MoveOut(inode));
    } else {
      CO_RETURN_IF_ERROR(co_await moving_out_->MoveOutThrough(inode));
    }
  }
  SpaceChange change;
  change.punches = punch || zero;
  change.preallocates = !punch;
  change.offset = offset;
  change.length = length;
  if (!punch && !keep) change.end = end;
  if (!HoldsData(*inode)) co_return co_await ChangeSpaceThrough(handle, change);
  CO_ASSIGN_OR_RETURN(FileContent file, co_await mds_->LoadContent(inode));
  Pending sent;
  Status changed = co_await data_->ChangeSpace(inode, file.layout, change, &sent);
  {
    std::lock_guard lock(inode->mutex);
    inode->NoteSent(sent);
  }
  CO_RETURN_IF_ERROR(std::move(changed));
  {
    std::lock_guard lock(inode->mutex);
    if (!punch && !keep) inode->pending.sent_size = std::max(inode->pending.sent_size, end);
  }
  NoteWrite(*inode, handle->caller, punch || keep ? 0 : std::max(end, size));
  co_return co_await telling_->SendPending(inode);
}

// Until the MDS takes it: the file's objects may be replaced meanwhile (by a truncation, or a move). The
// range is locked.
Task<Status> Core::ChangeSpaceThrough(HandlePtr handle, SpaceChange change) {
  InodePtr inode = handle->inode;
  for (int attempt = 0;; ++attempt) {
    CO_ASSIGN_OR_RETURN(FileContent file, co_await mds_->LoadContent(inode));
    Pending sent;
    Status status = co_await data_->ChangeSpace(inode, file.layout, change, &sent);
    sent.mtime = environment_.clock.Wall();
    sent.kill_suid = handle->caller.uid != 0;
    sent.sent_size = change.end;
    if (status.ok()) status = co_await telling_->TellSize(inode, file.layout, sent);
    if (ToErrno(status) != ESTALE || attempt >= kRaces) co_return status;
    {
      std::lock_guard lock(inode->mutex);
      inode->ForgetLayout(file.layout);
    }
    CO_RETURN_IF_ERROR(co_await mds_->LoadFile(inode));
    std::lock_guard lock(inode->mutex);
    const bool replaced =
        inode->layout == nullptr || inode->layout->object_sequence() != file.layout->object_sequence();
    if (replaced) telling_->DropObjects(inode, file.layout);
  }
}

// --- seeking ---

Task<StatusOr<uint64_t>> Core::Seek(HandlePtr handle, uint64_t offset, int whence) {
  NACRE_ENTER(pass);
  CO_RETURN_IF_ERROR(entrance_.Check(*handle));
  if (whence != SEEK_DATA && whence != SEEK_HOLE)
    co_return ErrnoError(EINVAL, absl::StrFormat("seek: whence %d", whence));
  InodePtr inode = handle->inode;
  for (int attempt = 0;; ++attempt) {
    CO_RETURN_IF_ERROR(co_await mds_->LoadFile(inode));
    CO_RETURN_IF_ERROR(co_await data_->Send(inode, 0, UINT64_MAX));  // the objects know best
    LayoutPtr layout;
    uint64_t size = 0;
    {
      std::lock_guard lock(inode->mutex);
      size = inode->Size();
      if (!inode->Inline()) layout = inode->layout;
    }
    auto found = co_await SeekInObjects(*io_, entrance_.epoch(), layout, size, offset, whence == SEEK_HOLE);
    if (layout == nullptr || HoldsData(*inode) || attempt >= kRaces) co_return found;
    // Objects that the file has left meanwhile look like holes.
    Caller system;
    CO_ASSIGN_OR_RETURN(const Known now, co_await mds_->Refresh(system, inode->fid, false));
    if (now.attr.layout_generation() == layout->generation()) co_return found;
  }
}

// --- copying ---

// Bytes outside of the cache: the write that takes them may wait for memory of the cache, of which several
// such readers could hold all.
Task<StatusOr<std::vector<std::byte>>> Core::ReadCopy(HandlePtr handle, uint64_t offset, size_t size) {
  CO_ASSIGN_OR_RETURN(const ReadResult data, co_await Read(std::move(handle), offset, size));
  std::vector<std::byte> bytes;
  bytes.reserve(data.size);
  for (const std::span<const std::byte> piece : data.pieces)
    bytes.insert(bytes.end(), piece.begin(), piece.end());
  co_return bytes;
}

Task<StatusOr<size_t>> Core::CopyRange(HandlePtr from, uint64_t from_offset, HandlePtr to, uint64_t to_offset,
                                       size_t size) {
  size_t done = 0;
  while (done < size) {
    size_t step = std::min<size_t>(kCopyStep, size - done);
    auto data = co_await ReadCopy(from, from_offset + done, step);
    if (!data.ok() && done == 0) co_return data.status();
    if (!data.ok() || data->empty()) break;
    const std::span<const std::byte> piece(*data);
    auto written = co_await Write(to, to_offset + done, std::span(&piece, 1));
    if (!written.ok() && done == 0) co_return written.status();
    if (!written.ok()) break;
    done += *written;
    if (*written < step) break;
  }
  co_return done;
}

}  // namespace nacre::client
