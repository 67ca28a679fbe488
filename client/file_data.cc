#include "client/file_data.h"

#include <algorithm>
#include <cerrno>

#include "common/log.h"

namespace nacre::client {
namespace {

constexpr uint64_t kFlightBytes = 1 << 20;
constexpr uint32_t kDirectSenders = 4;     // of one file
constexpr uint64_t kGrantAhead = 4 << 20;  // space that is granted beyond the need: nobody else can use it

uint64_t BlocksIn(uint64_t begin, uint64_t end) {
  return (end + kBlockSize - 1) / kBlockSize - begin / kBlockSize;
}

}  // namespace

FileData::FileData(std::shared_ptr<DataCache> cache, Targets& targets, ObjectIo& io, Durability& durability,
                   MdtRoom& room, const Entrance& entrance, Background& background)
    : cache_(std::move(cache)),
      targets_(targets),
      io_(io),
      durability_(durability),
      room_(room),
      entrance_(entrance),
      background_(background) {}

// --- into the cache ---

Task<Status> FileData::WriteCached(InodePtr inode, LayoutPtr layout, uint64_t offset, Pieces pieces,
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
      granted = co_await targets_.Reserve(entrance_.epoch(), piece.ost, bytes, kGrantAhead);
    if (!granted) break;
    reserved[piece.ost] += bytes;
  }
  if (!granted) {  // the OST decides now whether there is space
    for (auto [ost, bytes] : reserved) targets_.Unreserve(ost, bytes);
    CO_RETURN_IF_ERROR(co_await Send(inode, offset, end));
    Drop(*inode, offset, end);
    Pending done;
    Status status = co_await WriteThrough(inode, layout, offset, pieces, skip, size, &done);
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
  // Before a flight can take the blocks, which counts them off: so first as many as there can be.
  const uint64_t most = BlocksIn(offset, end);
  {
    std::lock_guard lock(inode->mutex);
    inode->dirty_blocks += most;
  }
  uint64_t newly = 0;
  cache_->FinishWrite(inode->data, plan, false, [&](uint64_t chunk_offset, uint64_t blocks) {
    newly += blocks;
    reserved[layout->At(chunk_offset, 1).ost] -= blocks * kBlockSize;
  });
  for (auto [ost, bytes] : reserved) {
    if (bytes > 0) targets_.Unreserve(ost, bytes);  // blocks that were dirty before
  }
  std::lock_guard lock(inode->mutex);
  inode->dirty_blocks -= std::min(inode->dirty_blocks, most - newly);
  co_return OkStatus();
}

void FileData::Drop(Inode& inode, uint64_t begin, uint64_t end) {
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
  for (auto [ost, count] : bytes) targets_.Unreserve(ost, count);
  std::lock_guard lock(inode.mutex);
  inode.dirty_blocks -= std::min(inode.dirty_blocks, dropped);
}

void FileData::Discard(Inode& inode) {
  Drop(inode, 0, UINT64_MAX);
  {
    std::lock_guard lock(inode.mutex);
    inode.pending = {};
    inode.inline_bytes.reset();
    inode.inline_dirty_begin = inode.inline_dirty_end = 0;
  }
  room_.LetGo(inode);
}

// --- out of the cache ---

// The layout is read when the flight has its bytes: nobody replaces the objects before it ends.
Task<Status> FileData::SendFlight(InodePtr inode, DataCache::Flight flight) {
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
    result = co_await io_.Write(entrance_.epoch(), inode->fid, layout, std::move(pieces), mode);
  {
    std::lock_guard lock(inode->mutex);
    inode->dirty_blocks -= std::min(inode->dirty_blocks, flight.blocks);
    inode->pending.blocks_delta += result.blocks_delta;
    if (result.status.ok()) inode->pending.sent_size = std::max(inode->pending.sent_size, end);
  }
  durability_.Written(inode, result.osts);
  if (!result.status.ok()) {
    LogError("file %s: %d bytes before offset %d could not be written back and are lost: %s",
             inode->fid.ToString(), flight.bytes, end, std::string(result.status.message()));
    NoteError(*inode, result.status);
  }
  cache_->FinishFlight(inode->data, flight, result.status.ok());
  co_return result.status;
}

Task<Status> FileData::Send(InodePtr inode, uint64_t begin, uint64_t end) {
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

bool FileData::SendFull(const InodePtr& inode) {
  if (cache_->FullChunks(inode->data) * kChunkSize < kWindow) return false;
  background_.Start(SendFullChunks(inode));
  return true;
}

Task<void> FileData::SendFullChunks(InodePtr inode) {
  std::vector<Task<Status>> flights;
  for (;;) {
    DataCache::Flight flight = cache_->TakeDirty(inode->data, 0, UINT64_MAX, kFlightBytes, true, UINT64_MAX);
    if (flight.pieces.empty()) break;
    flights.push_back(SendFlight(inode, std::move(flight)));
  }
  (void)co_await WhenAll(std::move(flights));  // errors are noted in the inode
}

void FileData::SendDirect(const InodePtr& inode) {
  {
    std::lock_guard lock(inode->mutex);
    inode->direct_dirty = true;
    if (inode->direct_senders >= kDirectSenders) return;
    ++inode->direct_senders;
  }
  background_.Start(SendLeftByDirect(inode));
}

Task<void> FileData::SendLeftByDirect(InodePtr inode) {
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

// --- past the cache ---

Task<Status> FileData::WriteThrough(InodePtr inode, LayoutPtr layout, uint64_t offset, Pieces pieces,
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
    WriteResult result = co_await io_.Write(entrance_.epoch(), inode->fid, layout, std::move(io), mode);
    durability_.Written(inode, result.osts);
    sent->blocks_delta += result.blocks_delta;
    CO_RETURN_IF_ERROR(result.status);
    sent->sent_size = at + n;
    done += n;
  }
  co_return OkStatus();
}

}  // namespace nacre::client
