#include "client/cache_reads.h"

#include <algorithm>
#include <cerrno>

namespace nacre::client {
namespace {

constexpr uint64_t kPiece = 1 << 20;     // fetched in one go
constexpr Duration kAheadPatience = 2s;  // of what nobody may be waiting for

}  // namespace

CacheReads::CacheReads(const Environment& environment, const Options& options,
                       std::shared_ptr<DataCache> cache, ObjectIo& io, Entrance& entrance,
                       Background& background)
    : environment_(environment),
      options_(options),
      cache_(std::move(cache)),
      io_(io),
      entrance_(entrance),
      background_(background) {}

Task<Status> CacheReads::Fetch(InodePtr inode, uint64_t begin, uint64_t end) {
  return Fill(std::move(inode), begin, end, true, nullptr);
}

// Without `may_wait` brings as much into the cache as there is memory for.
Task<Status> CacheReads::Fill(InodePtr inode, uint64_t begin, uint64_t end, bool may_wait,
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
          co_await io_.Read(entrance_.epoch(), inode->fid, layout, std::move(pieces), nullptr, patience);
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

void CacheReads::Ahead(const HandlePtr& handle, uint64_t offset, size_t size, uint64_t file_size) {
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
    background_.Start(FillAhead(handle->inode, begin, next, std::move(pass)));
    begin = next;
  }
}

Task<void> CacheReads::FillAhead(InodePtr inode, uint64_t begin, uint64_t end,
                                 [[maybe_unused]] Gate::Pass pass) {
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
  (void)co_await Fill(inode, begin, end, false, patience);
}

Task<StatusOr<ReadResult>> CacheReads::Past(InodePtr inode, LayoutPtr layout, uint64_t offset, size_t size,
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
  CO_RETURN_IF_ERROR(co_await io_.Read(entrance_.epoch(), inode->fid, layout, std::move(pieces), complete));
  result.size = size;
  result.keep = std::move(pins);
  co_return result;
}

}  // namespace nacre::client
