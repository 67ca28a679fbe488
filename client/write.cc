// Writing: into the cache where the file's data is worked on here (held_data.h), through to the servers
// otherwise, or when no space can be reserved.
// O_DIRECT: docs/decisions/0040-direct-writes.md.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "client/core.h"
#include "client/settling.h"

namespace nacre::client {
namespace {

// To be called with inode->mutex held.
void NoteWritten(Inode* inode, const Caller& caller, uint64_t end, const WallTime& now) {
  inode->pending.size = std::max(inode->pending.size, end);
  inode->pending.mtime = now;
  if (caller.uid != 0 && (inode->attr.mode() & (S_ISUID | S_ISGID)) != 0) inode->pending.kill_suid = true;
}

// Whether it has an OST that was lost.
bool NamesLost(const LayoutMap& layout, const Targets& targets) {
  for (uint32_t stripe = 0; stripe < layout.stripe_count(); ++stripe)
    if (targets.IsLost(layout.Ost(stripe))) return true;
  return false;
}

}  // namespace

Task<StatusOr<size_t>> Core::Write(HandlePtr handle, uint64_t offset, Pieces pieces) {
  NACRE_ENTER(pass);
  CO_RETURN_IF_ERROR(entrance_.Check(*handle));
  if (!handle->writable()) co_return ErrnoError(EBADF, "write: the file is open for reading only");
  CO_RETURN_IF_ERROR(TakeError(*handle));
  uint64_t errors = 0;
  {
    std::lock_guard lock(handle->inode->mutex);
    errors = handle->inode->errors.count();
    if (!handle->inode->pages.some) handle->inode->pages.under.reset();  // the kernel may have kept old ones
  }
  size_t size = 0;
  for (std::span<const std::byte> piece : pieces) size += piece.size();
  if (size == 0) co_return size_t{0};
  if (offset > INT64_MAX || size > INT64_MAX - offset)
    co_return ErrnoError(EFBIG, absl::StrFormat("write at %d: too far", offset));
  const InodePtr inode = handle->inode;
  const bool take = MayHaveCapability(*inode);
  if (take) CO_RETURN_IF_ERROR(co_await TakeCapability(inode));
  StatusOr<size_t> written = co_await WriteSomehow(handle, offset, pieces, size);
  // Bytes in the cache are acknowledged only while it is certain that they can be sent.
  if (HoldsData(*inode) && !entrance_.LeasesGood())
    CO_RETURN_IF_ERROR(co_await entrance_.AwaitGoodLeases(handle));
  CO_RETURN_IF_ERROR(entrance_.Check(*handle));
  // Another client may have given it one since this one last heard of the file.
  if (!take && MayHaveCapability(*inode)) CO_RETURN_IF_ERROR(co_await TakeCapability(inode));
  if (written.ok() && (handle->flags & (O_SYNC | O_DSYNC)) != 0) {
    CO_RETURN_IF_ERROR(co_await SyncFile(handle->inode, (handle->flags & O_SYNC) != O_SYNC));
    // The bytes of this write may have been lost with those of another, whose sync has found it out.
    std::lock_guard lock(handle->inode->mutex);
    if (handle->inode->errors.count() != errors) co_return handle->inode->errors.last();
  }
  co_return written;
}

Task<StatusOr<size_t>> Core::WriteSomehow(HandlePtr handle, uint64_t offset, Pieces pieces, size_t size) {
  const bool append = (handle->flags & O_APPEND) != 0;
  const bool taken = co_await held_data_->Take(handle->inode);
  if (taken) {
    const std::optional<uint64_t> at = append ? std::nullopt : std::optional<uint64_t>(offset);
    CO_ASSIGN_OR_RETURN(auto written, co_await WriteHeld(handle, at, pieces, size, MayGiveUp::kYes));
    if (written) co_return *written;
  }
  if (append) co_return co_await AppendThrough(handle, pieces, size);
  co_return co_await WriteThrough(handle, offset, pieces, size, MayGiveUp::kYes);
}

Task<StatusOr<size_t>> Core::WriteBack(HandlePtr handle, uint64_t offset, Pieces pieces) {
  NACRE_ENTER(pass);
  CO_RETURN_IF_ERROR(entrance_.Check(*handle));
  size_t size = 0;
  for (std::span<const std::byte> piece : pieces) size += piece.size();
  if (size == 0) co_return size_t{0};
  if (offset > INT64_MAX || size > INT64_MAX - offset)
    co_return ErrnoError(EFBIG, absl::StrFormat("write at %d: too far", offset));
  // The kernel does not say which user wrote the page: it counts as root's, who loses no setuid bit.
  auto plain = std::make_shared<FileHandle>(handle->inode, O_WRONLY, Caller(), handle->epoch);
  plain->writeback = true;
  StatusOr<size_t> written = co_await WriteThrough(plain, offset, pieces, size, MayGiveUp::kYes);
  if (HoldsData(*plain->inode) && !entrance_.LeasesGood())
    CO_RETURN_IF_ERROR(co_await entrance_.AwaitGoodLeases(handle));
  co_return written;
}

// Size and times as they are from now on. The setuid bit does not survive a write by others than root.
void Core::NoteWrite(Inode& inode, const Caller& caller, uint64_t end) {
  std::lock_guard lock(inode.mutex);
  NoteWritten(&inode, caller, end, environment_.clock.Wall());
}

// Bytes and what is to be told of them change at once: whoever sends the bytes in between would take what is
// told for told, and nobody would tell it later, since no bytes are left to send.
Status Core::PutInline(Inode& inode, const Caller& caller, uint64_t offset, Pieces pieces, size_t size) {
  std::lock_guard lock(inode.mutex);
  RETURN_IF_ERROR(inode.WriteInline(offset, pieces, size));
  NoteWritten(&inode, caller, offset + size, environment_.clock.Wall());
  return OkStatus();
}

// --- into the cache ---

// Locks what a write of the file needs whose data is worked on here: all of an inline file. `offset`: none
// for the end, which it is set to.
Task<StatusOr<Core::HeldRange>> Core::LockHeld(InodePtr inode, std::optional<uint64_t> offset, size_t size,
                                               MayGiveUp may) {
  const bool append = !offset;
  for (;;) {
    HeldRange held;
    {
      std::lock_guard lock(inode->mutex);
      held.is_inline = inode->Inline();
      held.offset = offset.value_or(inode->Size());
    }
    const bool whole = held.is_inline || append;
    held.range = co_await LockForWriting(*inode, held.is_inline ? 0 : held.offset,
                                         whole ? RangeLock::kEnd : held.offset + size, may);
    if (!held.range) co_return GivenUp();
    std::lock_guard lock(inode->mutex);
    held.taken = inode->data_scope != nullptr;
    held.outgrowing = inode->outgrowing != nullptr;
    if (held.is_inline && append) held.offset = inode->Size();
    const bool same = inode->Inline() == held.is_inline && (!append || held.offset == inode->Size());
    if (!held.taken || same) co_return held;
  }
}

// Nothing: the file's data is not worked on here any more. No offset: at the end.
Task<StatusOr<std::optional<size_t>>> Core::WriteHeld(HandlePtr handle, std::optional<uint64_t> offset,
                                                      Pieces pieces, size_t size, MayGiveUp may) {
  InodePtr inode = handle->inode;
  CO_ASSIGN_OR_RETURN(const HeldRange held, co_await LockHeld(inode, offset, size, may));
  if (!held.taken) co_return std::optional<size_t>();
  if (held.is_inline)
    CO_RETURN_IF_ERROR(co_await mds_->LoadFile(inode));  // it may have gone for want of memory
  early_->CountWrite();
  if (held.is_inline && held.offset + size <= room_.inline_limit() && !held.outgrowing) {
    uint64_t bytes;
    {
      std::lock_guard lock(inode->mutex);
      bytes = std::max<uint64_t>(held.offset + size, inode->Size()) + kRecordRoom;
    }
    const bool room = co_await write_behind_->Hold(inode, bytes);
    if (!room) {
      CO_ASSIGN_OR_RETURN(size_t written, co_await WriteInlineNow(handle, held.offset, pieces, size));
      co_return std::optional<size_t>(written);
    }
    CO_RETURN_IF_ERROR(PutInline(*inode, handle->caller, held.offset, pieces, size));
    dirty_.List(inode);
    if (!room_.TryHold(*inode, bytes)) CO_RETURN_IF_ERROR(co_await write_behind_->SendAll(inode));
    co_return std::optional<size_t>(size);
  }
  const bool direct = (handle->flags & O_DIRECT) != 0;
  if (held.is_inline && !direct && moving_out_->TryOutgrow(inode, held.offset + size)) {
    CO_RETURN_IF_ERROR(PutInline(*inode, handle->caller, held.offset, pieces, size));
    dirty_.List(inode);
    co_return std::optional<size_t>(size);
  }
  if (held.is_inline) CO_RETURN_IF_ERROR(co_await moving_out_->MoveOut(inode));
  (void)co_await write_behind_->Hold(inode, kRecordRoom);
  StatusOr<size_t> written = co_await WriteCachedObjects(handle, held.offset, pieces, size);
  if (!written.ok()) room_.LetGo(*inode);
  CO_RETURN_IF_ERROR(written.status());
  // The MDT decides now if it has no room to promise. The task that has sent the bytes of before may have let
  // go what this write held.
  if (!room_.TryHold(*inode, kRecordRoom)) CO_RETURN_IF_ERROR(co_await write_behind_->SendAll(inode));
  co_return std::optional<size_t>(*written);
}

// The range is locked.
Task<StatusOr<size_t>> Core::WriteCachedObjects(HandlePtr handle, uint64_t offset, Pieces pieces,
                                                size_t size) {
  InodePtr inode = handle->inode;
  LayoutPtr layout;
  {
    std::lock_guard lock(inode->mutex);
    layout = inode->layout;
  }
  if (layout == nullptr) co_return ContentLost(*inode);
  const bool direct = (handle->flags & O_DIRECT) != 0;
  if (direct && (!options_.direct_behind || (handle->flags & (O_SYNC | O_DSYNC)) != 0))
    co_return co_await WriteDirect(handle, inode, layout, offset, pieces, size);
  uint64_t done = 0;
  while (done < size) {
    uint64_t at = offset + done;
    uint64_t n = std::min<uint64_t>(size - done, FileData::kWindow - at % kChunkSize);
    Status status = co_await data_->WriteCached(inode, layout, at, pieces, done, n);
    if (!status.ok()) {
      if (done == 0) co_return status;
      break;
    }
    done += n;
    NoteWrite(*inode, handle->caller, offset + done);
    dirty_.List(inode);
    StartSending(inode, direct);
  }
  co_return done;
}

// Sends in the background what a window has left in the cache, if it is time for that. The next window of a
// write that is longer than the cache may wait for the room that this makes.
void Core::StartSending(const InodePtr& inode, bool direct) {
  if (direct) return data_->SendDirect(inode);
  if (!data_->SendFull(inode) && cache_->OverHalfDirty()) write_behind_->RelievePressure();
}

// Past the cache, to the servers, behind what the cache has: that was acknowledged, and stays if this write
// fails. The range is locked.
Task<StatusOr<size_t>> Core::WriteDirect(HandlePtr handle, InodePtr inode, LayoutPtr layout, uint64_t offset,
                                         Pieces pieces, size_t size) {
  CO_RETURN_IF_ERROR(co_await data_->Send(inode, offset, offset + size));
  co_await cache_->WaitFlights(inode->data, offset, offset + size);
  data_->Drop(*inode, offset, offset + size);
  Pending done;
  Status status = co_await data_->WriteThrough(inode, layout, offset, pieces, 0, size, &done);
  {
    std::lock_guard lock(inode->mutex);
    inode->NoteSent(done);
  }
  CO_RETURN_IF_ERROR(std::move(status));
  NoteWrite(*inode, handle->caller, offset + size);
  dirty_.List(inode);
  co_return size;
}

// --- through to the servers ---

// The MDS may answer only when other clients' kernels have forgotten their pages of the file, and these wait
// for what their applications are writing: so nobody here waits for the range by then. Else two clients that
// write to a file which both have mapped would wait for each other.
Task<StatusOr<size_t>> Core::WriteThrough(HandlePtr handle, uint64_t offset, Pieces pieces, size_t size,
                                          MayGiveUp may) {
  InodePtr inode = handle->inode;
  LayoutPtr stale;
  for (int attempt = 0;; ++attempt) {
    RangeLock::Guard range = co_await LockForWriting(*inode, offset, offset + size, may);
    if (!range) co_return GivenUp();
    if (HoldsData(*inode)) {
      range.Release();
      CO_ASSIGN_OR_RETURN(auto written, co_await WriteHeld(handle, offset, pieces, size, may));
      if (written) co_return *written;
      continue;
    }
    CO_ASSIGN_OR_RETURN(const LayoutPtr layout, co_await LayoutForWriting(inode, attempt > 0, stale));
    Status status;
    if (layout == nullptr) {
      status = co_await WriteInlineThrough(handle, offset, pieces, size, &range);
    } else {
      Pending sent;
      status = co_await data_->WriteThrough(inode, layout, offset, pieces, 0, size, &sent);
      data_->Drop(*inode, offset, offset + size);  // of readers (leased_reads.cc)
      sent.mtime = environment_.clock.Wall();
      sent.kill_suid = handle->caller.uid != 0;
      sent.writeback = handle->writeback;
      if (status.ok() && telling_->TryTellLater(inode, layout, sent)) {
        dirty_.List(inode);
        co_return size;
      }
      if (status.ok()) status = co_await telling_->TellSize(inode, layout, sent, &range);
      stale = layout;
    }
    if (status.ok()) co_return size;
    bool raced = ToErrno(status) == ESTALE || (layout == nullptr && ToErrno(status) == EFBIG);
    if (layout != nullptr && attempt == 0 && NamesLost(*layout, *targets_))
      raced = true;  // the layout may be an old one
    if (!raced || attempt >= kRaces) co_return status;
    if (layout == nullptr) continue;
    std::lock_guard lock(inode->mutex);
    inode->ForgetLayout(layout);  // newer or, after a loss of power, older ones follow
  }
}

// Null: the file's bytes lie in the MDT. `again`: what is known is not believed. `stale`: objects that were
// written to and may not be the file's any more.
Task<StatusOr<LayoutPtr>> Core::LayoutForWriting(InodePtr inode, bool again, LayoutPtr stale) {
  LayoutPtr layout;
  {
    std::lock_guard lock(inode->mutex);
    if (!inode->attr.inline_data()) layout = inode->layout;
  }
  if (layout != nullptr && !again) co_return layout;
  CO_RETURN_IF_ERROR(co_await mds_->LoadFile(inode));
  std::lock_guard lock(inode->mutex);
  const bool replaced = stale != nullptr && (inode->layout == nullptr ||
                                             inode->layout->object_sequence() != stale->object_sequence());
  if (replaced) telling_->DropObjects(inode, stale);
  co_return inode->attr.inline_data() ? nullptr : inode->layout;
}

// EFBIG: it has been moved out for this write, or by somebody else; write to the objects. `range`, if not
// null: is released as soon as nobody takes the file's data before the answer.
Task<Status> Core::WriteInlineThrough(HandlePtr handle, std::optional<uint64_t> offset, Pieces pieces,
                                      size_t size, RangeLock::Guard* range) {
  InodePtr inode = handle->inode;
  uint64_t at = 0;  // an append's place is the server's to know; this says whether it is worth asking
  {
    std::lock_guard lock(inode->mutex);
    at = offset.value_or(inode->Size());
  }
  if (at + size > room_.inline_limit()) {
    CO_RETURN_IF_ERROR(co_await moving_out_->MoveOutThrough(inode));
    co_return ErrnoError(EFBIG, "moved out");
  }
  proto::MetadataRequest request;
  proto::WriteInline* write = request.mutable_write_inline();
  *write->mutable_fid() = ToProto(inode->fid);
  write->set_append(!offset);
  write->set_offset(offset.value_or(0));
  std::string* data = write->mutable_data();
  data->resize(size);
  CopyOut(pieces, 0, reinterpret_cast<std::byte*>(data->data()), size);
  *write->mutable_mtime() = ToProto(environment_.clock.Wall());
  write->set_kill_suid(handle->caller.uid != 0);
  write->set_writeback(handle->writeback);
  request.set_want_file_lease(!handle->writeback && telling_->WantsFileLease(*inode));
  Settling settling(*early_, {inode});
  if (range != nullptr) range->Release();
  CO_ASSIGN_OR_RETURN(proto::MetadataReply reply, co_await mds_->AskAsSystem(std::move(request)));
  Knowledge::Learn(*inode, reply.attr().attr());
  room_.Promise(reply.attr().promised_bytes());
  std::lock_guard lock(inode->mutex);
  inode->mutation = session_->mutations();
  inode->NoteAlone(reply.attr().alone_under());
  co_return OkStatus();
}

// A write into an inline file that the MDS carries out now. The whole range is locked.
Task<StatusOr<size_t>> Core::WriteInlineNow(HandlePtr handle, uint64_t offset, Pieces pieces, size_t size) {
  InodePtr inode = handle->inode;
  AsyncMutex::Guard meta = co_await inode->meta.Lock();
  CO_RETURN_IF_ERROR(co_await telling_->SendInline(inode));
  Settling settling(*early_, {inode});
  CO_RETURN_IF_ERROR(co_await WriteInlineThrough(handle, offset, pieces, size, nullptr));
  std::lock_guard lock(inode->mutex);
  if (inode->inline_bytes == nullptr) co_return size;
  std::string& bytes = inode->inline_bytes.Grow(offset + size);
  CopyOut(pieces, 0, reinterpret_cast<std::byte*>(bytes.data()) + offset, size);
  co_return size;
}

}  // namespace nacre::client
