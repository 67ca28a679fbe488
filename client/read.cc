// Reading: out of the cache under a lease, past it otherwise or with O_DIRECT; readahead.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "client/core.h"

namespace nacre::client {
namespace {

constexpr uint64_t kPiece = 1 << 20;       // fetched in one go
constexpr uint64_t kMostPinned = 4 << 20;  // of one read
constexpr Duration kAheadPatience = 2s;    // of what nobody may be waiting for

ReadResult Slice(std::shared_ptr<std::string> bytes, uint64_t offset, size_t size) {
  ReadResult result;
  if (offset >= bytes->size()) return result;
  result.size = std::min<uint64_t>(size, bytes->size() - offset);
  result.pieces.push_back(std::as_bytes(std::span(bytes->data() + offset, result.size)));
  result.keep = std::move(bytes);
  return result;
}

}  // namespace

Task<StatusOr<ReadResult>> Core::Read(HandlePtr handle, uint64_t offset, size_t size) {
  NACRE_ENTER(pass);
  CO_RETURN_IF_ERROR(entrance_.Check(*handle));
  if (!handle->readable()) co_return ErrnoError(EBADF, "read: the file is open for writing only");
  if (offset > INT64_MAX || size > INT64_MAX - offset)
    co_return ErrnoError(EINVAL, absl::StrFormat("read at %d: too far", offset));
  if (size > std::min<uint64_t>(kMostPinned, cache_->max_allocation() * kChunkSize / 2)) {
    co_return co_await ReadLarge(handle, offset, size);
  }
  if (!ReadsCached(*handle->inode) && WantsContentLease(*handle)) co_await LeaseContent(handle);
  if (!ReadsCached(*handle->inode)) co_return co_await ReadThrough(handle, offset, size);
  auto read = co_await ReadCached(handle, offset, size);
  if (!entrance_.LeasesGood())
    CO_RETURN_IF_ERROR(co_await entrance_.AwaitGoodLeases(handle));  // they ran out while it waited
  co_return read;
}

// More than the cache should hold in place for one reader: gathered in memory of its own.
Task<StatusOr<ReadResult>> Core::ReadLarge(HandlePtr handle, uint64_t offset, size_t size) {
  auto buffer = std::make_shared<std::string>();
  const uint64_t most = std::min<uint64_t>(kMostPinned, cache_->max_allocation() * kChunkSize / 2);
  bool relies = false;  // on a lease
  while (buffer->size() < size) {
    size_t want = std::min<uint64_t>(most, size - buffer->size());
    uint64_t at = offset + buffer->size();
    StatusOr<ReadResult> part = ErrnoError(EIO, "nothing read");
    if (ReadsCached(*handle->inode)) {
      relies = true;
      part = co_await ReadCached(handle, at, want);
    } else {
      part = co_await ReadThrough(handle, at, want);
    }
    if (!part.ok()) co_return part.status();
    for (std::span<const std::byte> piece : part->pieces) {
      buffer->append(reinterpret_cast<const char*>(piece.data()), piece.size());
    }
    if (part->size < want) break;
  }
  if (relies && !entrance_.LeasesGood()) CO_RETURN_IF_ERROR(co_await entrance_.AwaitGoodLeases(handle));
  co_return Slice(std::move(buffer), 0, size);
}

// READ of a file may end while something is read under it, for nobody who gives a lease back waits for reads.
// Then the file may have left the objects that were asked.
Task<StatusOr<ReadResult>> Core::ReadCached(HandlePtr handle, uint64_t offset, size_t size) {
  Inode& inode = *handle->inode;
  uint64_t lease = 0;
  {
    std::lock_guard lock(inode.mutex);
    if (inode.ContentLeased()) lease = inode.pages.lease;
  }
  auto read = co_await ReadInCache(handle, offset, size);
  if (HoldsData(inode)) co_return read;
  {
    std::lock_guard lock(inode.mutex);
    if (inode.ContentLeased() && inode.pages.lease == lease) co_return read;
  }
  co_return co_await ReadThrough(handle, offset, size);
}

Task<StatusOr<ReadResult>> Core::ReadInCache(HandlePtr handle, uint64_t offset, size_t size) {
  InodePtr inode = handle->inode;
  CO_RETURN_IF_ERROR(co_await LoadFile(inode));
  LayoutPtr layout;
  uint64_t file_size = 0;
  {
    std::lock_guard lock(inode->mutex);
    if (!inode->Content()) co_return ContentLost(*inode);
    if (inode->Inline()) co_return Slice(inode->inline_bytes.get(), offset, size);
    layout = inode->layout;
    file_size = inode->Size();
  }
  if (offset >= file_size) co_return ReadResult{};
  uint64_t end = std::min<uint64_t>(offset + size, file_size);
  if ((handle->flags & O_DIRECT) != 0) {
    if (cache_->IsDirty(inode->data, offset, end)) CO_RETURN_IF_ERROR(co_await SendData(inode, offset, end));
    auto read = co_await ReadObjects(inode, layout, offset, end - offset, nullptr);
    {
      // The lease may have been away meanwhile, and the file have left these objects.
      std::lock_guard lock(inode->mutex);
      if (inode->layout != nullptr && inode->layout->object_sequence() == layout->object_sequence())
        co_return read;
    }
    co_return co_await ReadInCache(handle, offset, size);
  }
  ReadAhead(handle, offset, end - offset, file_size);

  ReadResult result;
  auto pins = std::make_shared<ChunkPins>(cache_);
  if (!cache_->TryRead(inode->data, offset, end - offset, &result.pieces, pins.get())) {
    RangeLock::Guard range = co_await inode->range.LockUnlessCancelled(offset, end, false);
    if (!range) co_return GivenUp();
    if (!ReadsCached(*inode)) {  // given up while we waited
      range.Release();
      co_return co_await ReadThrough(handle, offset, size);
    }
    {
      std::lock_guard lock(inode->mutex);  // it may have been cut while we waited
      end = std::min(end, inode->Size());
      if (inode->Inline() && inode->inline_bytes == nullptr) co_return ContentLost(*inode);
      if (inode->Inline()) co_return Slice(inode->inline_bytes.get(), offset, size);
    }
    if (offset >= end) co_return ReadResult{};
    do {
      CO_RETURN_IF_ERROR(co_await Fetch(inode, offset, end, true));
    } while (!cache_->TryRead(inode->data, offset, end - offset, &result.pieces, pins.get()));
  }
  result.size = end - offset;
  result.keep = std::move(pins);
  co_return result;
}

// Brings [begin, end) into the cache; without `may_wait` as much of it as there is memory for. The range is
// locked by the caller.
Task<Status> Core::Fetch(InodePtr inode, uint64_t begin, uint64_t end, bool may_wait,
                         CancellationPtr patience) {
  ChunkPins spare(cache_);
  for (;;) {
    DataCache::Fetch plan = cache_->PlanFetch(inode->data, begin, end, &spare);
    if (!plan.pieces.empty()) {
      LayoutPtr layout;
      {
        std::lock_guard lock(inode->mutex);
        layout = inode->layout;
      }
      if (layout == nullptr) {
        cache_->FinishFetch(inode->data, plan, false);
        co_return ContentLost(*inode);
      }
      std::vector<IoPiece> pieces;
      pieces.reserve(plan.pieces.size());
      for (const ChunkPiece& piece : plan.pieces) {
        pieces.push_back({piece.file_offset(), cache_->Span(*piece.chunk, piece.interval)});
      }
      Status read =
          co_await io_->Read(entrance_.epoch(), inode->fid, layout, std::move(pieces), nullptr, patience);
      cache_->FinishFetch(inode->data, plan, read.ok());
      if (!read.ok()) co_return read;
    }
    if (plan.absent > 0 && may_wait) {
      spare = co_await cache_->Allocate(plan.absent);
    } else if (plan.absent > 0) {
      auto more = cache_->TryAllocate(plan.absent);
      if (!more) co_return OkStatus();
      spare = *std::move(more);
    } else if (plan.wait && may_wait) {
      CO_RETURN_IF_ERROR(co_await WaitUnlessCancelled(*plan.wait));
    } else {
      co_return OkStatus();
    }
  }
}

// --- readahead ---

void Core::ReadAhead(const HandlePtr& handle, uint64_t offset, size_t size, uint64_t file_size) {
  ReadPattern& pattern = handle->reading;
  uint64_t begin = 0, end = 0;
  {
    std::lock_guard lock(pattern.mutex);
    // Requests of one stream may overtake each other on their way through the kernel and our threads.
    uint64_t slack = pattern.window > 0   ? std::max<uint64_t>(size, 2 * kPiece)
                     : size >= kPiece / 8 ? size
                                          : 0;
    bool sequential = offset <= pattern.next + slack && offset + slack >= pattern.next;
    if (!sequential) {
      pattern.window = 0;
      pattern.next = pattern.ahead = offset + size;
      return;
    }
    pattern.next = std::max(pattern.next, offset + size);
    pattern.ahead = std::max(pattern.ahead, pattern.next);
    pattern.window =
        pattern.window == 0 ? 4 * size : std::min<uint64_t>(2 * pattern.window, options_.readahead_bytes);
    if (pattern.ahead >= file_size || pattern.ahead > pattern.next + pattern.window / 2) return;
    begin = pattern.ahead;
    end = std::min((pattern.next + pattern.window + kChunkSize - 1) / kChunkSize * kChunkSize, file_size);
    if (end <= begin) return;
    pattern.ahead = end;
  }
  while (begin < end) {
    uint64_t next = std::min((begin / kPiece + 1) * kPiece, end);
    Gate::Pass pass = entrance_.TryEnter();
    if (!pass) return;
    background_.Start(FetchAhead(handle->inode, begin, next, std::move(pass)));
    begin = next;
  }
}

Task<void> Core::FetchAhead(InodePtr inode, uint64_t begin, uint64_t end, [[maybe_unused]] Gate::Pass pass) {
  RangeLock::Guard range = inode->range.TryLock(begin, end, false);
  if (!range) co_return;  // being written: what is there now may not be wanted any more
  if (!ReadsCached(*inode)) co_return;
  {
    std::lock_guard lock(inode->mutex);
    end = std::min(end, inode->Size());
    if (inode->Inline() || inode->layout == nullptr || begin >= end) co_return;
  }
  // A reader of this range meets the error again, and may wait for the server. Readahead must not: it would
  // keep memory of the cache, and its reader may be gone.
  auto patience = std::make_shared<Cancellation>(environment_.clock.Now() + kAheadPatience);
  const std::unique_ptr<TimerHandle> timer = environment_.clock.After(
      environment_.executor, kAheadPatience,
      [patience] { patience->Cancel(ErrnoError(ETIMEDOUT, "read ahead: the server does not answer")); });
  (void)co_await Fetch(inode, begin, end, false, patience);
}

// --- past the cache ---

Task<StatusOr<ReadResult>> Core::ReadObjects(InodePtr inode, LayoutPtr layout, uint64_t offset, size_t size,
                                             bool* complete) {
  const uint64_t end = offset + size;
  const uint64_t first = offset / kChunkSize;
  auto pins =
      std::make_shared<ChunkPins>(co_await cache_->Allocate((end + kChunkSize - 1) / kChunkSize - first));
  std::vector<IoPiece> pieces;
  ReadResult result;
  for (size_t i = 0; i < pins->chunks().size(); ++i) {
    const Chunk& chunk = *pins->chunks()[i];
    uint64_t start = (first + i) * kChunkSize;
    Interval interval{static_cast<uint32_t>(std::max(offset, start) - start),
                      static_cast<uint32_t>(std::min(end - start, kChunkSize))};
    pieces.push_back({start + interval.begin, cache_->Span(chunk, interval)});
    result.pieces.emplace_back(chunk.data + interval.begin, interval.end - interval.begin);
  }
  CO_RETURN_IF_ERROR(co_await io_->Read(entrance_.epoch(), inode->fid, layout, std::move(pieces), complete));
  result.size = size;
  result.keep = std::move(pins);
  co_return result;
}

Task<StatusOr<ReadResult>> Core::ReadThrough(HandlePtr handle, uint64_t offset, size_t size) {
  InodePtr inode = handle->inode;
  for (int attempt = 0;; ++attempt) {
    const Duration begin = environment_.clock.Now();
    CO_ASSIGN_OR_RETURN(FileContent file, co_await LoadContent(inode));
    if (file.inline_bytes != nullptr) co_return Slice(file.inline_bytes, offset, size);
    if (offset >= file.size) co_return ReadResult{};
    bool complete = true;
    auto result = co_await ReadObjects(inode, file.layout, offset,
                                       std::min<uint64_t>(size, file.size - offset), &complete);
    if (ToErrno(result.status()) == ESTALE && attempt < kRaces) continue;  // its objects have been moved
    if (!result.ok() || attempt >= kRaces || (complete && session_->ObjectsKeptSince(begin)))
      co_return result;
    const bool replaced = co_await Replaced(inode, file);
    if (!replaced) co_return result;
  }
}

}  // namespace nacre::client
