// Writing: into the cache where the file's data is worked on here (held_data.cc), through to the servers
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

constexpr uint64_t kWindow = 1 << 20;  // copied in one go

constexpr uint64_t kGrantAhead = 4 << 20;  // space that is granted beyond the need: nobody else can use it

uint64_t BlocksIn(uint64_t begin, uint64_t end) {
  return (end + kBlockSize - 1) / kBlockSize - begin / kBlockSize;
}

// Whether it has an OST that was lost.
bool NamesLost(const LayoutMap& layout, const Targets& targets) {
  for (uint32_t stripe = 0; stripe < layout.stripe_count(); ++stripe)
    if (targets.IsLost(layout.Ost(stripe))) return true;
  return false;
}

}  // namespace

// Copies `size` bytes that begin `skip` bytes into the pieces.
void CopyOut(std::span<const std::span<const std::byte>> pieces, uint64_t skip, std::byte* to,
             uint64_t size) {
  for (std::span<const std::byte> piece : pieces) {
    if (skip >= piece.size()) {
      skip -= piece.size();
      continue;
    }
    uint64_t n = std::min<uint64_t>(piece.size() - skip, size);
    std::memcpy(to, piece.data() + skip, n);
    to += n;
    size -= n;
    skip = 0;
    if (size == 0) return;
  }
}

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
  const bool taken = co_await TakeData(handle->inode);
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
  inode.pending.size = std::max(inode.pending.size, end);
  inode.pending.mtime = environment_.clock.Wall();
  if (caller.uid != 0 && (inode.attr.mode() & (S_ISUID | S_ISGID)) != 0) inode.pending.kill_suid = true;
}

// --- into the cache ---

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
    uint64_t n = std::min<uint64_t>(size - done, kWindow - at % kChunkSize);
    Status status = co_await WriteChunks(inode, layout, at, pieces, done, n);
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
  if (direct) {
    StartSendDirect(inode);
  } else if (cache_->FullChunks(inode->data) * kChunkSize >= kWindow) {
    background_.Start(SendFull(inode));
  } else if (cache_->OverHalfDirty()) {
    RelievePressure();
  }
}

// Past the cache, to the servers. The range is locked.
Task<StatusOr<size_t>> Core::WriteDirect(HandlePtr handle, InodePtr inode, LayoutPtr layout, uint64_t offset,
                                         Pieces pieces, size_t size) {
  DropData(*inode, offset, offset + size);
  co_await cache_->WaitFlights(inode->data, offset, offset + size);
  DropData(*inode, offset, offset + size);
  Pending done;
  Status status = co_await WriteObjectsThrough(inode, layout, offset, pieces, 0, size, &done);
  {
    std::lock_guard lock(inode->mutex);
    inode->NoteSent(done);
  }
  CO_RETURN_IF_ERROR(std::move(status));
  NoteWrite(*inode, handle->caller, offset + size);
  dirty_.List(inode);
  co_return size;
}

// One window of at most kWindow bytes. The range is locked. `space`, if not null: has been reserved for it,
// and what is used of that is taken off.
Task<Status> Core::WriteChunks(InodePtr inode, LayoutPtr layout, uint64_t offset, Pieces pieces,
                               uint64_t skip, uint64_t size, std::map<OstIndex, uint64_t>* space) {
  const uint64_t end = offset + size;
  co_await cache_->WaitForRoom();
  std::map<OstIndex, uint64_t> reserved;
  bool granted = true;
  for (const StripePiece& piece : layout->Map(offset, size)) {
    uint64_t bytes = BlocksIn(piece.object_offset, piece.object_offset + piece.length) * kBlockSize;
    if (space != nullptr && (*space)[piece.ost] >= bytes)
      (*space)[piece.ost] -= bytes;
    else
      granted = co_await targets_->Reserve(entrance_.epoch(), piece.ost, bytes, kGrantAhead);
    if (!granted) break;
    reserved[piece.ost] += bytes;
  }
  if (!granted) {  // the OST decides now whether there is space
    for (auto [ost, bytes] : reserved) targets_->Unreserve(ost, bytes);
    CO_RETURN_IF_ERROR(co_await SendData(inode, offset, end));
    DropData(*inode, offset, end);
    Pending done;
    Status status = co_await WriteObjectsThrough(inode, layout, offset, pieces, skip, size, &done);
    std::lock_guard lock(inode->mutex);
    inode->NoteSent(done);
    co_return status;
  }

  ChunkPins spare(cache_);
  DataCache::Write plan = cache_->PrepareWrite(inode->data, offset, end, &spare);
  while (plan.pieces.empty()) {
    if (plan.wait) co_await plan.wait->Wait();
    if (plan.absent > 0) spare = co_await cache_->Allocate(plan.absent);
    plan = cache_->PrepareWrite(inode->data, offset, end, &spare);
  }
  for (const ChunkPiece& piece : plan.pieces) {
    CopyOut(pieces, skip + piece.file_offset() - offset, piece.chunk->data + piece.interval.begin,
            piece.interval.end - piece.interval.begin);
  }
  uint64_t newly = 0;
  cache_->FinishWrite(inode->data, plan, false, [&](uint64_t chunk_offset, uint64_t blocks) {
    newly += blocks;
    reserved[layout->At(chunk_offset, 1).ost] -= blocks * kBlockSize;
  });
  for (auto [ost, bytes] : reserved) {
    if (bytes > 0) targets_->Unreserve(ost, bytes);  // blocks that were dirty before
  }
  std::lock_guard lock(inode->mutex);
  inode->dirty_blocks += newly;
  co_return OkStatus();
}

void Core::DropData(Inode& inode, uint64_t begin, uint64_t end) {
  LayoutPtr layout;
  {
    std::lock_guard lock(inode.mutex);
    layout = inode.layout;
  }
  uint64_t dropped = 0;
  std::map<OstIndex, uint64_t> bytes;
  cache_->Drop(inode.data, begin, end, [&](uint64_t chunk_offset, uint64_t blocks) {
    dropped += blocks;
    if (layout != nullptr) bytes[layout->At(chunk_offset, 1).ost] += blocks * kBlockSize;
  });
  for (auto [ost, count] : bytes) targets_->Unreserve(ost, count);
  std::lock_guard lock(inode.mutex);
  inode.dirty_blocks -= std::min(inode.dirty_blocks, dropped);
}

// Everything that is held back of a file that is going away.
void Core::DiscardData(Inode& inode) {
  DropData(inode, 0, UINT64_MAX);
  {
    std::lock_guard lock(inode.mutex);
    inode.pending = {};
    inode.inline_bytes.reset();
    inode.inline_dirty_begin = inode.inline_dirty_end = 0;
  }
  LetGo(inode);
}

// --- through to the servers ---

// Objects only: `sent` says what the MDS must be told. The range is locked, and nothing of it is cached.
Task<Status> Core::WriteObjectsThrough(InodePtr inode, LayoutPtr layout, uint64_t offset, Pieces pieces,
                                       uint64_t skip, uint64_t size, Pending* sent) {
  for (uint64_t done = 0; done < size;) {
    uint64_t at = offset + done;
    uint64_t n = std::min<uint64_t>(size - done, 4 * kWindow - at % kChunkSize);
    n = std::min<uint64_t>(n, cache_->max_allocation() / 2 * kChunkSize - at % kChunkSize);
    const uint64_t first = at / kChunkSize;
    ChunkPins pins = co_await cache_->Allocate((at + n + kChunkSize - 1) / kChunkSize - first);
    std::vector<IoPiece> io;
    uint64_t copied = 0;
    for (const Chunk* chunk : pins.chunks()) {
      uint32_t begin = static_cast<uint32_t>((at + copied) % kChunkSize);
      uint32_t count = static_cast<uint32_t>(std::min(n - copied, kChunkSize - begin));
      CopyOut(pieces, skip + done + copied, chunk->data + begin, count);
      io.push_back({at + copied, cache_->Span(*chunk, Interval{begin, begin + count})});
      copied += count;
    }
    WriteMode mode;
    WriteResult result = co_await io_->Write(entrance_.epoch(), inode->fid, layout, std::move(io), mode);
    durability_->Written(inode, result.osts);
    sent->blocks_delta += result.blocks_delta;
    CO_RETURN_IF_ERROR(result.status);
    sent->sent_size = at + n;
    done += n;
  }
  co_return OkStatus();
}

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
      status = co_await WriteObjectsThrough(inode, layout, offset, pieces, 0, size, &sent);
      DropData(*inode, offset, offset + size);  // of readers (leased_reads.cc)
      sent.mtime = environment_.clock.Wall();
      sent.kill_suid = handle->caller.uid != 0;
      sent.writeback = handle->writeback;
      if (status.ok()) status = co_await TellSize(inode, layout, sent, &range);
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
  if (replaced) background_.Start(DropObjects(inode->fid, stale));
  co_return inode->attr.inline_data() ? nullptr : inode->layout;
}

Task<Status> Core::MoveOutThrough(InodePtr inode) {
  proto::MetadataRequest request;
  *request.mutable_move_out()->mutable_fid() = ToProto(inode->fid);
  CO_ASSIGN_OR_RETURN(proto::MetadataReply reply, co_await mds_->AskAsSystem(std::move(request)));
  Knowledge::Learn(*inode, reply.moved_out().attr(), &reply.moved_out().layout());
  co_return OkStatus();
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
  if (at + size > inline_limit_) {
    CO_RETURN_IF_ERROR(co_await MoveOutThrough(inode));
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
  request.set_want_file_lease(!handle->writeback && WantsFileLease(*inode));
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
  CO_RETURN_IF_ERROR(co_await SendInline(inode));
  Settling settling(*early_, {inode});
  CO_RETURN_IF_ERROR(co_await WriteInlineThrough(handle, offset, pieces, size, nullptr));
  std::lock_guard lock(inode->mutex);
  if (inode->inline_bytes == nullptr) co_return size;
  std::string& bytes = inode->inline_bytes.Grow(offset + size);
  CopyOut(pieces, 0, reinterpret_cast<std::byte*>(bytes.data()) + offset, size);
  co_return size;
}

// Objects that the file has left: a write may have made them anew after they had been destroyed. The MDS
// knows whether others still read by them, and whether the file may come back to them after a loss of power.
Task<void> Core::DropObjects(Fid fid, LayoutPtr layout) {
  proto::MetadataRequest request;
  proto::DropObjects* drop = request.mutable_drop_objects();
  *drop->mutable_fid() = ToProto(fid);
  drop->set_object_sequence(layout->object_sequence());
  for (uint32_t stripe = 0; stripe < layout->stripe_count(); ++stripe) drop->add_osts(layout->Ost(stripe));
  (void)co_await mds_->AskIn(entrance_.epoch(), std::move(request));  // what stays is found by the checker
}

}  // namespace nacre::client
