// Write-behind: what is held back under leases, and when it is sent.
//
// Data goes to the objects first and the size to the MDS after it, so that a file never shows bytes that are
// not there.
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "client/core.h"
#include "client/settling.h"
#include "common/log.h"

namespace nacre::client {
namespace {

constexpr uint64_t kFlightBytes = 1 << 20;
constexpr uint32_t kDirectSenders = 4;  // of one file
constexpr size_t kFilesAtOnce = 64;
constexpr Duration kGatherClosed = 1ms;
constexpr int kTriesToHold = 3;

}  // namespace

// --- when ---

// More is dirty than is good: do not wait for its time. One at a time.
void Core::RelievePressure() {
  if (relieving_.exchange(true)) return;
  background_.Start([](Core* core) -> Task<void> {
    co_await core->SendOld(0ns);
    core->relieving_ = false;
  }(this));
}

// `bytes` of the room on the MDT, in all for this file. False: there is none, ask the MDS now.
Task<bool> Core::Hold(InodePtr inode, uint64_t bytes) {
  for (int i = 0; i < kTriesToHold && room_.any(); ++i) {
    if (room_.TryHold(*inode, bytes)) {
      if (room_.crowded()) RelievePressure();
      co_return true;
    }
    co_await SendOld(0ns);
  }
  co_return false;
}

void Core::LetGo(Inode& inode) { room_.LetGo(inode, cache_->IsDirty(inode.data)); }

// In the background, with what else is closed at this time.
void Core::SendSoon(const InodePtr& inode) {
  if (!dirty_.ListClosed(inode)) return;
  background_.Start([](Core* core) -> Task<void> {
    co_await core->environment_.clock.Sleep(kGatherClosed);
    (void)co_await core->SendFiles(
        core->dirty_.TakeClosed());  // the next write, fsync or close has the error
  }(this));
}

// Everything that has been dirty for so long.
Task<void> Core::SendOld(Duration age) {
  std::vector<InodePtr> due = dirty_.TakeOlder(age);
  // Off the list before it is looked at: a writer that comes after the look lists it anew.
  std::erase_if(due, [&](const InodePtr& inode) {
    bool awaits_bytes;
    {
      std::lock_guard lock(inode->mutex);
      awaits_bytes = inode->awaits_bytes();
      inode->listed_dirty = false;
    }
    if (awaits_bytes) dirty_.List(inode);
    return awaits_bytes || !HoldsBack(*inode);  // it was sent when it was closed
  });
  (void)co_await SendFiles(std::move(due));  // the next write, fsync or close has the error
}

// The files are off the list; errors are noted in them.
Task<Status> Core::SendFiles(std::vector<InodePtr> files) {
  Status first;
  for (size_t begin = 0; begin < files.size(); begin += kFilesAtOnce) {
    std::vector<Task<Status>> sends;
    for (size_t i = begin; i < std::min(begin + kFilesAtOnce, files.size()); ++i) {
      {
        std::lock_guard lock(files[i]->mutex);
        files[i]->listed_dirty = false;
      }
      sends.push_back(SendAll(files[i]));
    }
    std::vector<Status> results = co_await WhenAll(std::move(sends));
    for (Status& result : results) {
      if (first.ok()) first = std::move(result);
    }
  }
  co_return first;
}

bool Core::HoldsBack(Inode& inode) {
  if (cache_->IsDirty(inode.data)) return true;
  std::lock_guard lock(inode.mutex);
  return inode.holds_back();
}

Task<Status> Core::SendEverything() {
  Status sent = co_await SendFiles(dirty_.TakeAll());
  // Other tasks may have taken files off the list and not have come to them yet.
  std::vector<InodePtr> inodes = inodes_->All();
  std::vector<InodePtr> files;
  std::copy_if(inodes.begin(), inodes.end(), std::back_inserter(files),
               [this](const InodePtr& inode) { return HoldsBack(*inode); });
  Status rest = co_await SendFiles(std::move(files));
  if (sent.ok()) sent = std::move(rest);
  for (const InodePtr& inode : inodes) {  // what others are sending just now
    co_await AwaitMovedOut(inode, MetadataQueue::Hurry::kYes);
    co_await cache_->WaitFlights(inode->data, 0, UINT64_MAX);
    AsyncMutex::Guard meta = co_await inode->meta.Lock();
  }
  co_return sent;
}

// --- data ---

// The layout is read when the flight has its bytes: nobody replaces the objects before it ends.
Task<Status> Core::SendFlight(InodePtr inode, DataCache::Flight flight) {
  LayoutPtr layout;
  {
    std::lock_guard lock(inode->mutex);
    layout = inode->layout;
  }
  std::vector<IoPiece> pieces;
  pieces.reserve(flight.pieces.size());
  for (const ChunkPiece& piece : flight.pieces) {
    pieces.push_back({piece.file_offset(), cache_->Span(*piece.chunk, piece.interval)});
  }
  const ChunkPiece& last = flight.pieces.back();
  const uint64_t end = last.chunk_offset + last.interval.end;
  WriteMode mode;
  mode.reserved = true;
  WriteResult result;
  result.status = ContentLost(*inode);
  if (layout != nullptr)
    result = co_await io_->Write(entrance_.epoch(), inode->fid, layout, std::move(pieces), mode);
  {
    std::lock_guard lock(inode->mutex);
    inode->dirty_blocks -= std::min(inode->dirty_blocks, flight.blocks);
    inode->pending.blocks_delta += result.blocks_delta;
    if (result.status.ok()) inode->pending.sent_size = std::max(inode->pending.sent_size, end);
  }
  durability_->Written(inode, result.osts);
  if (!result.status.ok()) {
    LogError("file %s: %d bytes before offset %d could not be written back and are lost: %s",
             inode->fid.ToString(), flight.bytes, end, std::string(result.status.message()));
    NoteError(*inode, result.status);
  }
  cache_->FinishFlight(inode->data, flight, result.status.ok());
  co_return result.status;
}

Task<Status> Core::SendData(InodePtr inode, uint64_t begin, uint64_t end) {
  const uint64_t until = cache_->Tick();
  Status first;
  for (;;) {
    std::vector<Task<Status>> flights;
    std::optional<OneShot<Unit>> wait;
    for (;;) {
      DataCache::Flight flight = cache_->TakeDirty(inode->data, begin, end, kFlightBytes, false, until);
      wait = std::move(flight.wait);
      if (flight.pieces.empty()) break;
      flights.push_back(SendFlight(inode, std::move(flight)));
    }
    std::vector<Status> results = co_await WhenAll(std::move(flights));
    for (Status& result : results) {
      if (first.ok()) first = std::move(result);
    }
    if (!wait) break;
    co_await wait->Wait();
  }
  co_await cache_->WaitFlights(inode->data, begin, end, until);
  co_return first;
}

// Chunks that are dirty from end to end: writers of a stream will not come back to them.
Task<void> Core::SendFull(InodePtr inode) {
  std::vector<Task<Status>> flights;
  for (;;) {
    DataCache::Flight flight = cache_->TakeDirty(inode->data, 0, UINT64_MAX, kFlightBytes, true, UINT64_MAX);
    if (flight.pieces.empty()) break;
    flights.push_back(SendFlight(inode, std::move(flight)));
  }
  (void)co_await WhenAll(std::move(flights));  // errors are noted in the inode
}

// Sends what an O_DIRECT write has left in the cache at once, by a few tasks. While all are busy more comes
// together, and goes in fewer requests.
void Core::StartSendDirect(const InodePtr& inode) {
  {
    std::lock_guard lock(inode->mutex);
    inode->direct_dirty = true;
    if (inode->direct_senders >= kDirectSenders) return;
    ++inode->direct_senders;
  }
  background_.Start(SendDirect(inode));
}

Task<void> Core::SendDirect(InodePtr inode) {
  uint64_t from = 0;  // round the file, so that all of it has its turn
  for (;;) {
    {
      std::lock_guard lock(inode->mutex);
      if (!std::exchange(inode->direct_dirty, false)) {
        --inode->direct_senders;
        co_return;
      }
    }
    DataCache::Flight flight =
        cache_->TakeDirty(inode->data, from, UINT64_MAX, kFlightBytes, false, UINT64_MAX);
    if (flight.pieces.empty() && !flight.wait && from == 0) continue;  // all is sent
    if (flight.wait) {
      co_await flight.wait->Wait();
    } else if (flight.pieces.empty()) {
      from = 0;
    } else {
      from = flight.pieces.back().chunk_offset + kChunkSize;
      flight.keep = false;
      (void)co_await SendFlight(inode, std::move(flight));  // errors are noted in the inode
    }
    // Look again: what came meanwhile may have been left to this one because its chunk was under way.
    std::lock_guard lock(inode->mutex);
    inode->direct_dirty = true;
  }
}

// --- the MDS ---

// One UpdateSize: `sent` as it is. `range`, if not null: is released as soon as nobody takes the file's data
// before the answer.
Task<Status> Core::TellSize(InodePtr inode, LayoutPtr layout, Pending sent, RangeLock::Guard* range) {
  proto::MetadataRequest request;
  proto::UpdateSize* update = request.mutable_update_size();
  *update->mutable_fid() = ToProto(inode->fid);
  update->set_size(sent.sent_size);
  if (sent.mtime) *update->mutable_mtime() = ToProto(*sent.mtime);
  update->set_blocks_delta(sent.blocks_delta);
  update->set_kill_suid(sent.kill_suid);
  update->set_writeback(sent.writeback);
  update->set_promised(sent.promised);
  update->set_layout_generation(layout->generation());
  CO_RETURN_IF_ERROR(co_await queue_->WaitForRoom());
  if (TryTellEarly(inode, request)) co_return OkStatus();
  request.set_want_file_lease(!sent.writeback && WantsFileLease(*inode));
  Settling settling(*early_, {inode});
  if (range != nullptr) range->Release();
  CO_ASSIGN_OR_RETURN(proto::MetadataReply reply, co_await mds_->AskAsSystem(std::move(request)));
  room_.Promise(reply.attr().promised_bytes());
  std::lock_guard lock(inode->mutex);
  inode->Apply(reply.attr().attr());
  inode->NoteAlone(reply.attr().alone_under());
  co_return OkStatus();
}

// Turns the MDS's refusal of a change of the file with these objects into the error that a program is told.
// ESTALE becomes EIO: the MDT has lost power, and with it the change that gave the file these objects.
Status Core::AsLoss(Inode& inode, const LayoutPtr& layout, Status refused) {
  if (ToErrno(refused) != ESTALE) return refused;
  {
    std::lock_guard lock(inode.mutex);
    inode.ForgetLayout(layout);
  }
  return ErrnoError(EIO, absl::StrFormat("what was written there is lost: %s", refused.message()));
}

// Size, times and blocks of what objects have by now.
Task<Status> Core::SendPending(InodePtr inode) {
  AsyncMutex::Guard meta = co_await inode->meta.Lock();
  Pending sent;
  std::optional<WallTime> mtime;
  LayoutPtr layout;
  {
    std::lock_guard lock(inode->mutex);
    layout = inode->layout;
    if (!inode->pending.any() || inode->gone || inode->Inline() || layout == nullptr) co_return OkStatus();
    sent = inode->pending;
    sent.promised = inode->held > 0;
    mtime = sent.mtime;
    if (!mtime) sent.mtime = FromProto(inode->attr.mtime());  // as it is
    inode->pending.blocks_delta = 0;
  }
  Status told = co_await TellSize(inode, layout, sent);
  // Somebody has removed it while these bytes were late: they may have made its objects anew.
  if (ToErrno(told) == ENOENT) background_.Start(DropObjects(inode->fid, layout));
  bool gone;
  {
    std::lock_guard lock(inode->mutex);
    gone = inode->gone;
    Pending& pending = inode->pending;
    if (!told.ok()) pending = {};
    if (pending.sent_size <= inode->attr.size()) pending.sent_size = 0;
    if (pending.size <= inode->attr.size()) pending.size = 0;
    if (pending.mtime == mtime) pending.mtime.reset();
    if (sent.kill_suid) pending.kill_suid = false;
  }
  if (told.ok() || gone) co_return OkStatus();
  told = AsLoss(*inode, layout, std::move(told));
  LogError("file %s: the MDS did not take its new size: %s", inode->fid.ToString(),
           std::string(told.message()));
  NoteError(*inode, told);
  co_return told;
}

Task<Status> Core::SendAll(InodePtr inode) {
  Status sent = co_await SendParts(inode);
  LetGo(*inode);
  co_return sent;
}

Task<Status> Core::SendParts(InodePtr inode) {
  {
    AsyncMutex::Guard meta = co_await LockMeta(inode, MetadataQueue::Hurry::kNo);
    CO_RETURN_IF_ERROR(co_await SendInline(inode));
  }
  Status data = co_await SendData(inode, 0, UINT64_MAX);
  Status size = co_await SendPending(inode);
  CO_RETURN_IF_ERROR(std::move(data));
  co_return size;
}

}  // namespace nacre::client
