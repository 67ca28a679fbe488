#include "client/data_cache.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "transport/shared_memory.h"

namespace nacre::client {

uint64_t BlocksTouched(const IntervalSet& set) {
  uint64_t blocks = 0;
  uint64_t next = 0;  // first block not counted yet
  for (const Interval& i : set.intervals()) {
    uint64_t first = std::max<uint64_t>(i.begin / kBlockSize, next);
    uint64_t end = (i.end + kBlockSize - 1) / kBlockSize;
    if (end > first) blocks += end - first;
    next = std::max(next, end);
  }
  return blocks;
}

ChunkPins::~ChunkPins() {
  if (!chunks_.empty()) cache_->Unpin(chunks_);
}

StatusOr<std::shared_ptr<DataCache>> DataCache::Make(Transport& transport, uint64_t cache_bytes,
                                                     uint64_t dirty_bytes) {
  constexpr uint64_t kLeastChunks = 128;
  std::shared_ptr<DataCache> cache(new DataCache);
  cache->chunk_count_ = std::max(cache_bytes / kChunkSize, kLeastChunks);
  cache->dirty_limit_ = std::clamp<uint64_t>(dirty_bytes / kChunkSize, 16, cache->chunk_count_ / 2);
  auto memory = SharedMemory::Create("nacre-cache", cache->chunk_count_ * kChunkSize);
  if (!memory.ok()) {
    return ErrnoError(
        ToErrno(memory.status()),
        absl::StrFormat("no memory for the data cache, make it smaller: %s", memory.status().message()));
  }
  std::byte* const data = (*memory)->data();
  ASSIGN_OR_RETURN(cache->region_, transport.RegisterShared(*std::move(memory)));
  cache->chunks_.resize(cache->chunk_count_);
  cache->free_.reserve(cache->chunk_count_);
  for (size_t i = cache->chunk_count_; i-- > 0;) {
    cache->chunks_[i].data = data + i * kChunkSize;
    cache->chunks_[i].region_offset = i * kChunkSize;
    cache->free_.push_back(&cache->chunks_[i]);
  }
  return cache;
}

// --- chunks: free, idle, in use ---

void DataCache::Unlink(Chunk* chunk) {
  if (!chunk->idle) return;
  chunk->idle = false;
  (chunk->older != nullptr ? chunk->older->newer : oldest_) = chunk->newer;
  (chunk->newer != nullptr ? chunk->newer->older : newest_) = chunk->older;
  chunk->older = chunk->newer = nullptr;
}

// Puts a chunk where its state says: in use, idle (youngest of them), or free.
void DataCache::Settle(Chunk* chunk) {
  Unlink(chunk);
  if (chunk->pins > 0 || chunk->writers > 0 || chunk->fetching || !chunk->sending.empty()) return;
  if (chunk->file == nullptr) {
    chunk->valid.Clear();
    chunk->dirty.Clear();
    free_.push_back(chunk);
    return;
  }
  if (!chunk->dirty.empty()) return;
  chunk->idle = true;
  chunk->older = newest_;
  (newest_ != nullptr ? newest_->newer : oldest_) = chunk;
  newest_ = chunk;
}

void DataCache::Detach(Chunk* chunk) {
  if (chunk->file == nullptr) return;
  chunk->file->chunks_.erase(chunk->index);
  chunk->file = nullptr;
  --attached_;
}

bool DataCache::TakeLocked(size_t count, std::vector<Chunk*>* out) {
  while (free_.size() < count && oldest_ != nullptr) {
    Chunk* victim = oldest_;
    Detach(victim);
    Settle(victim);
  }
  if (free_.size() < count) return false;
  for (size_t i = 0; i < count; ++i) {
    Chunk* chunk = free_.back();
    free_.pop_back();
    chunk->pins = 1;
    out->push_back(chunk);
  }
  return true;
}

std::optional<ChunkPins> DataCache::TryAllocate(size_t count) {
  ChunkPins pins(shared_from_this());
  std::lock_guard lock(mutex_);
  if (!allocations_.empty() || !TakeLocked(count, &pins.chunks_)) return std::nullopt;
  return pins;
}

Task<ChunkPins> DataCache::Allocate(size_t count) {
  ChunkPins pins(shared_from_this());
  OneShot<std::vector<Chunk*>> arrival;
  {
    std::lock_guard lock(mutex_);
    if (allocations_.empty() && TakeLocked(count, &pins.chunks_)) co_return pins;
    allocations_.push_back({count, arrival});
  }
  pins.chunks_ = co_await arrival.Wait();
  co_return pins;
}

// Gives what has become free to those who wait for it, and lets writers go on. Call it last.
void DataCache::Serve(std::unique_lock<std::mutex> lock) {
  std::vector<std::pair<OneShot<std::vector<Chunk*>>, std::vector<Chunk*>>> served;
  while (!allocations_.empty()) {
    std::vector<Chunk*> chunks;
    if (!TakeLocked(allocations_.front().count, &chunks)) break;
    served.emplace_back(allocations_.front().chunks, std::move(chunks));
    allocations_.pop_front();
  }
  std::vector<OneShot<Unit>> writers;
  if (dirty_chunks_ < dirty_limit_) writers.swap(room_waiters_);
  lock.unlock();
  for (auto& [arrival, chunks] : served) arrival.Set(std::move(chunks));
  Wake(std::move(writers));
}

void DataCache::Wake(std::vector<OneShot<Unit>> waiters) {
  for (OneShot<Unit>& waiter : waiters) waiter.Set({});
}

void DataCache::Unpin(const std::vector<Chunk*>& chunks) {
  std::unique_lock lock(mutex_);
  for (Chunk* chunk : chunks) {
    --chunk->pins;
    Settle(chunk);
  }
  Serve(std::move(lock));
}

void DataCache::Uncount(Chunk* chunk) {
  if (chunk->dirty.empty() && chunk->sending.empty()) return;
  --dirty_chunks_;
  if (chunk->file == nullptr) return;
  --chunk->file->dirty_chunks_;
  if (chunk->dirty.Covers(0, kChunkSize)) --chunk->file->full_chunks_;
}

void DataCache::Count(Chunk* chunk) {
  if (chunk->file != nullptr) {
    auto& dirty = chunk->file->dirty_;
    if (!chunk->dirty.empty()) {
      dirty.try_emplace(chunk->index, chunk);
    } else if (!dirty.empty()) {
      dirty.erase(chunk->index);
    }
  }
  if (chunk->dirty.empty() && chunk->sending.empty()) return;
  ++dirty_chunks_;
  if (chunk->file == nullptr) return;
  ++chunk->file->dirty_chunks_;
  if (chunk->dirty.Covers(0, kChunkSize)) ++chunk->file->full_chunks_;
}

// --- reading ---

bool DataCache::TryRead(FileCache& file, uint64_t offset, uint64_t size,
                        std::vector<std::span<const std::byte>>* pieces, ChunkPins* pins) {
  size_t old_pieces = pieces->size();
  size_t old_pins = pins->chunks_.size();
  std::lock_guard lock(mutex_);
  uint64_t end = offset + size;
  auto it = file.chunks_.lower_bound(offset / kChunkSize);
  for (uint64_t at = offset; at < end; ++it) {
    uint64_t start = at / kChunkSize * kChunkSize;
    uint32_t from = static_cast<uint32_t>(at - start);
    uint32_t to = static_cast<uint32_t>(std::min(end - start, kChunkSize));
    if (it == file.chunks_.end() || it->first != at / kChunkSize || !it->second->valid.Covers(from, to)) {
      for (size_t i = old_pins; i < pins->chunks_.size(); ++i) {
        --pins->chunks_[i]->pins;
        Settle(pins->chunks_[i]);
      }
      pins->chunks_.resize(old_pins);
      pieces->resize(old_pieces);
      return false;
    }
    Chunk* chunk = it->second;
    ++chunk->pins;
    Settle(chunk);
    pins->chunks_.push_back(chunk);
    pieces->emplace_back(chunk->data + from, to - from);
    at = start + to;
  }
  return true;
}

Chunk* DataCache::Attach(FileCache& file, uint64_t index, ChunkPins* spare) {
  if (spare == nullptr || spare->chunks_.empty()) return nullptr;
  Chunk* chunk = spare->chunks_.back();
  spare->chunks_.pop_back();
  chunk->pins = 0;
  chunk->file = &file;
  chunk->index = index;
  ++attached_;
  file.chunks_[index] = chunk;
  return chunk;
}

template <typename F>
size_t DataCache::ForEachChunk(FileCache& file, uint64_t begin, uint64_t end, ChunkPins* spare, F f) {
  size_t absent = 0;
  for (uint64_t index = begin / kChunkSize; index * kChunkSize < end; ++index) {
    uint64_t start = index * kChunkSize;
    Interval interval{static_cast<uint32_t>(std::max(begin, start) - start),
                      static_cast<uint32_t>(std::min(end - start, kChunkSize))};
    auto it = file.chunks_.find(index);
    Chunk* chunk = it != file.chunks_.end() ? it->second : Attach(file, index, spare);
    if (chunk == nullptr) {
      ++absent;
    } else if (!f(chunk, start, interval)) {
      break;
    }
  }
  return absent;
}

template <typename F, typename G>
void DataCache::Finish(FileCache& file, const std::vector<ChunkPiece>& pieces, F bytes, G finish) {
  std::unique_lock lock(mutex_);
  for (size_t i = 0; i < pieces.size(); ++i) {
    Chunk* chunk = pieces[i].chunk;
    bytes(chunk, pieces[i].interval);
    if (i + 1 < pieces.size() && pieces[i + 1].chunk == chunk) continue;
    finish(chunk);
    Settle(chunk);
  }
  std::vector<OneShot<Unit>> waiters;
  waiters.swap(file.waiters_);
  Serve(std::move(lock));
  Wake(std::move(waiters));
}

DataCache::Fetch DataCache::PlanFetch(FileCache& file, uint64_t begin, uint64_t end, ChunkPins* spare) {
  Fetch plan;
  std::lock_guard lock(mutex_);
  bool others = false;
  plan.absent =
      ForEachChunk(file, begin, end, spare, [&](Chunk* chunk, uint64_t start, const Interval& interval) {
        if (chunk->valid.Covers(interval.begin, interval.end)) return true;
        if (chunk->fetching) return others = true;
        chunk->fetching = true;
        for (const Interval& missing : chunk->valid.Missing(interval.begin, interval.end))
          plan.pieces.push_back({chunk, missing, start});
        Settle(chunk);
        return true;
      });
  if (others) {
    plan.wait.emplace();
    file.waiters_.push_back(*plan.wait);
  }
  return plan;
}

void DataCache::FinishFetch(FileCache& file, const Fetch& fetch, bool ok) {
  auto arrived = [ok](Chunk* chunk, const Interval& interval) {
    if (ok) chunk->valid.Add(interval.begin, interval.end);
  };
  Finish(file, fetch.pieces, arrived, [this](Chunk* chunk) {
    chunk->fetching = false;
    if (chunk->valid.empty() && chunk->writers == 0) Detach(chunk);
  });
}

// --- writing ---

DataCache::Write DataCache::PrepareWrite(FileCache& file, uint64_t begin, uint64_t end, ChunkPins* spare) {
  Write plan;
  std::lock_guard lock(mutex_);
  plan.absent =
      ForEachChunk(file, begin, end, spare, [&](Chunk* chunk, uint64_t start, const Interval& interval) {
        plan.pieces.push_back({chunk, interval, start});
        if (!chunk->sending.Overlaps(interval.begin, interval.end)) return true;
        plan.wait.emplace();
        file.waiters_.push_back(*plan.wait);
        return false;
      });
  bool ready = plan.absent == 0 && !plan.wait;
  for (const ChunkPiece& piece : plan.pieces) {
    if (ready) ++piece.chunk->writers;
    Settle(piece.chunk);
  }
  if (!ready) plan.pieces.clear();
  return plan;
}

void DataCache::FinishWrite(FileCache& file, const Write& write, bool clean, const BlockCount& newly_dirty) {
  std::unique_lock lock(mutex_);
  for (const ChunkPiece& piece : write.pieces) {
    Chunk* chunk = piece.chunk;
    --chunk->writers;
    chunk->valid.Add(piece.interval.begin, piece.interval.end);
    Uncount(chunk);
    if (!clean) {
      if (chunk->dirty.empty()) chunk->dirty_since = ++tick_;
      uint64_t before = BlocksTouched(chunk->dirty);
      chunk->dirty.Add(piece.interval.begin, piece.interval.end);
      if (newly_dirty) newly_dirty(piece.chunk_offset, BlocksTouched(chunk->dirty) - before);
    }
    Count(chunk);
    Settle(chunk);
  }
  std::vector<OneShot<Unit>> waiters;
  waiters.swap(file.waiters_);
  lock.unlock();
  Wake(std::move(waiters));
}

// --- sending ---

uint64_t DataCache::Tick() {
  std::lock_guard lock(mutex_);
  return ++tick_;
}

DataCache::Flight DataCache::TakeDirty(FileCache& file, uint64_t begin, uint64_t end, uint64_t max_bytes,
                                       bool only_full, uint64_t until) {
  Flight flight;
  std::lock_guard lock(mutex_);
  bool busy = false;
  for (auto it = file.dirty_.lower_bound(begin / kChunkSize);
       it != file.dirty_.end() && flight.bytes < max_bytes;) {
    Chunk* chunk = it->second;
    uint64_t start = it->first * kChunkSize;
    ++it;
    if (start >= end) break;
    if (chunk->dirty_since > until) continue;
    if (only_full && !chunk->dirty.Covers(0, kChunkSize)) continue;
    if (chunk->writers > 0 || !chunk->sending.empty() || file.frozen_ > 0) {
      busy = true;
      continue;
    }
    Uncount(chunk);
    std::swap(chunk->sending, chunk->dirty);
    Count(chunk);  // takes it out of dirty_
    it = file.dirty_.upper_bound(chunk->index);
    chunk->sending_since = chunk->dirty_since;
    for (const Interval& i : chunk->sending.intervals()) {
      flight.pieces.push_back({chunk, i, start});
      flight.bytes += i.end - i.begin;
    }
    flight.blocks += BlocksTouched(chunk->sending);
    ++file.flights_;
    Settle(chunk);
  }
  if (busy && flight.pieces.empty()) {
    flight.wait.emplace();
    file.waiters_.push_back(*flight.wait);
  }
  return flight;
}

void DataCache::FinishFlight(FileCache& file, const Flight& flight, bool ok) {
  const bool keep = ok && flight.keep;
  auto sent = [keep](Chunk* chunk, const Interval& interval) {
    if (!keep) chunk->valid.Remove(interval.begin, interval.end);
  };
  Finish(file, flight.pieces, sent, [this, &file](Chunk* chunk) {
    Uncount(chunk);
    chunk->sending.Clear();
    Count(chunk);
    --file.flights_;
    if (chunk->valid.empty() && chunk->writers == 0 && !chunk->fetching) Detach(chunk);
  });
}

Task<void> DataCache::WaitFlights(FileCache& file, uint64_t begin, uint64_t end, uint64_t until) {
  for (;;) {
    OneShot<Unit> change;
    {
      std::lock_guard lock(mutex_);
      if (file.flights_ == 0) co_return;
      bool found = false;
      for (auto it = file.chunks_.lower_bound(begin / kChunkSize); it != file.chunks_.end() && !found; ++it) {
        if (it->first * kChunkSize >= end) break;
        found = !it->second->sending.empty() && it->second->sending_since <= until;
      }
      if (!found) co_return;
      file.waiters_.push_back(change);
    }
    co_await change.Wait();
  }
}

bool DataCache::InFlight(FileCache& file) {
  std::lock_guard lock(mutex_);
  return file.flights_ > 0;
}

void DataCache::Freeze(FileCache& file) {
  std::lock_guard lock(mutex_);
  ++file.frozen_;
}

void DataCache::Thaw(FileCache& file) {
  std::vector<OneShot<Unit>> waiters;
  {
    std::lock_guard lock(mutex_);
    if (--file.frozen_ == 0) waiters.swap(file.waiters_);
  }
  Wake(std::move(waiters));
}

// --- forgetting ---

void DataCache::Drop(FileCache& file, uint64_t begin, uint64_t end, const BlockCount& dropped) {
  std::unique_lock lock(mutex_);
  auto it = file.chunks_.lower_bound(begin / kChunkSize);
  while (it != file.chunks_.end() && it->first * kChunkSize < end) {
    Chunk* chunk = it->second;
    ++it;
    uint64_t start = chunk->index * kChunkSize;
    uint32_t from = static_cast<uint32_t>(std::max(begin, start) - start);
    uint32_t to = static_cast<uint32_t>(std::min(end - start, kChunkSize));
    Uncount(chunk);
    uint64_t blocks = BlocksTouched(chunk->dirty);
    chunk->dirty.Remove(from, to);
    chunk->valid.Remove(from, to);
    blocks -= BlocksTouched(chunk->dirty);
    if (blocks > 0 && dropped) dropped(start, blocks);
    Count(chunk);
    if (chunk->valid.empty() && chunk->sending.empty() && chunk->writers == 0 && !chunk->fetching) {
      uint64_t index = chunk->index;
      Detach(chunk);
      Settle(chunk);
      it = file.chunks_.upper_bound(index);
    } else {
      Settle(chunk);
    }
  }
  Serve(std::move(lock));
}

// --- looking ---

bool DataCache::IsDirty(FileCache& file) {
  std::lock_guard lock(mutex_);
  return file.dirty_chunks_ > 0;
}

bool DataCache::IsDirty(FileCache& file, uint64_t begin, uint64_t end) {
  std::lock_guard lock(mutex_);
  if (file.dirty_chunks_ == 0) return false;
  for (auto it = file.chunks_.lower_bound(begin / kChunkSize); it != file.chunks_.end(); ++it) {
    if (it->first * kChunkSize >= end) return false;
    if (!it->second->dirty.empty() || !it->second->sending.empty()) return true;
  }
  return false;
}

uint64_t DataCache::FullChunks(FileCache& file) {
  std::lock_guard lock(mutex_);
  return file.full_chunks_;
}

Task<void> DataCache::WaitForRoom() {
  for (;;) {
    OneShot<Unit> room;
    {
      std::lock_guard lock(mutex_);
      if (dirty_chunks_ < dirty_limit_) co_return;
      room_waiters_.push_back(room);
    }
    co_await room.Wait();
  }
}

bool DataCache::OverHalfDirty() {
  std::lock_guard lock(mutex_);
  return dirty_chunks_ * 2 >= dirty_limit_;
}

uint64_t DataCache::cached_bytes() {
  std::lock_guard lock(mutex_);
  return attached_ * kChunkSize;
}

uint64_t DataCache::dirty_bytes() {
  std::lock_guard lock(mutex_);
  return dirty_chunks_ * kChunkSize;
}

}  // namespace nacre::client
