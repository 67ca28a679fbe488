// File data in memory: 64 KiB chunks of one registered arena, each with the byte intervals of it that are
// valid, dirty, or being sent. Clean chunks nobody uses go in LRU order when others are wanted.
//
// The arena belongs to DataCache; which chunks a file has is in its FileCache, guarded, like everything in a
// chunk but its bytes, by DataCache's mutex. Bytes may be touched by whoever has pinned the chunk: written
// only in intervals that no flight is sending (PrepareWrite sees to it). Thread-safe. Allocate waits while
// everything is dirty or pinned; nothing else fails.
#pragma once

#include <absl/container/btree_map.h>

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "client/interval_set.h"
#include "common/ids.h"
#include "common/status.h"
#include "common/task.h"
#include "transport/transport.h"

namespace nacre::client {

inline constexpr uint64_t kChunkSize = 64 << 10;

class FileCache;
class DataCache;

struct Chunk {
  std::byte* data = nullptr;
  uint64_t region_offset = 0;
  // The rest is guarded by DataCache's mutex.
  FileCache* file = nullptr;  // null: detached, gone with the last pin
  uint64_t index = 0;
  IntervalSet valid, dirty, sending;  // dirty and sending are parts of valid
  uint32_t pins = 0;
  uint32_t writers = 0;        // copying bytes into it just now
  uint64_t dirty_since = 0;    // ticks
  uint64_t sending_since = 0;  // dirty since
  bool fetching = false;
  bool idle = false;  // in the LRU list
  Chunk* older = nullptr;
  Chunk* newer = nullptr;
};

// Chunks that stay in place while this lives.
class ChunkPins {
 public:
  explicit ChunkPins(std::shared_ptr<DataCache> cache) : cache_(std::move(cache)) {}
  ChunkPins(ChunkPins&& other) noexcept : cache_(other.cache_), chunks_(std::move(other.chunks_)) {
    other.chunks_.clear();
  }
  ChunkPins& operator=(ChunkPins&& other) noexcept {
    std::swap(cache_, other.cache_);
    std::swap(chunks_, other.chunks_);
    return *this;
  }
  ~ChunkPins();

  const std::vector<Chunk*>& chunks() const { return chunks_; }

 private:
  friend class DataCache;
  std::shared_ptr<DataCache> cache_;
  std::vector<Chunk*> chunks_;
};

// The chunks of one file. Guarded by DataCache's mutex; Drop everything before destruction.
class FileCache {
 private:
  friend class DataCache;
  absl::btree_map<uint64_t, Chunk*> chunks_;
  absl::btree_map<uint64_t, Chunk*> dirty_;  // of these: with dirty bytes
  uint64_t dirty_chunks_ = 0;                // with dirty or sending bytes
  uint32_t frozen_ = 0;                      // no new flights
  uint64_t full_chunks_ = 0;                 // dirty from end to end
  uint64_t flights_ = 0;                     // chunks with sending bytes
  std::vector<OneShot<Unit>> waiters_;       // for a fetch or a flight of this file to end
};

// Bytes of a chunk, for a fetch, a write or a flight.
struct ChunkPiece {
  Chunk* chunk = nullptr;
  Interval interval;
  uint64_t file_offset() const { return chunk_offset + interval.begin; }
  uint64_t chunk_offset = 0;
};

class DataCache : public std::enable_shared_from_this<DataCache> {
 public:
  static StatusOr<std::shared_ptr<DataCache>> Make(Transport& transport, uint64_t cache_bytes,
                                                   uint64_t dirty_bytes);

  MemorySpan Span(const Chunk& chunk, const Interval& interval) const {
    return {region_, chunk.region_offset + interval.begin, interval.end - interval.begin};
  }

  // Detached chunks, pinned for the caller. At most max_allocation() at once.
  Task<ChunkPins> Allocate(size_t count);
  std::optional<ChunkPins> TryAllocate(size_t count);
  size_t max_allocation() const { return chunk_count_ / 4; }

  // Appends the bytes of [offset, offset + size) to `pieces` and pins them, if all are valid.
  bool TryRead(FileCache& file, uint64_t offset, uint64_t size,
               std::vector<std::span<const std::byte>>* pieces, ChunkPins* pins);

  struct Fetch {
    std::vector<ChunkPiece> pieces;     // to be filled by the caller, then FinishFetch
    size_t absent = 0;                  // chunks wanting: allocate as many and ask again
    std::optional<OneShot<Unit>> wait;  // others are fetching the rest
  };
  // Claims what is missing of [begin, end), taking absent chunks out of `spare`.
  Fetch PlanFetch(FileCache& file, uint64_t begin, uint64_t end, ChunkPins* spare);
  void FinishFetch(FileCache& file, const Fetch& fetch, bool ok);

  struct Write {
    std::vector<ChunkPiece> pieces;  // copy into these, then FinishWrite
    size_t absent = 0;
    std::optional<OneShot<Unit>> wait;  // a flight is sending bytes in the range: wait, then ask again
  };
  Write PrepareWrite(FileCache& file, uint64_t begin, uint64_t end, ChunkPins* spare);
  // Marks the pieces valid and, unless `clean`, dirty. Calls `newly_dirty(chunk offset, blocks)` for blocks
  // that were not dirty.
  using BlockCount = std::function<void(uint64_t chunk_offset, uint64_t blocks)>;
  void FinishWrite(FileCache& file, const Write& write, bool clean, const BlockCount& newly_dirty);

  struct Flight {
    std::vector<ChunkPiece> pieces;  // in file order
    uint64_t bytes = 0;
    uint64_t blocks = 0;  // of 4 KiB, touched
    bool keep = true;     // as clean bytes, when they have been sent
    std::optional<OneShot<Unit>>
        wait;  // nothing could be taken: a writer or another flight has what there is
  };
  // Takes dirty bytes of [begin, end) for sending, up to about max_bytes, of chunks that became dirty before
  // `until` (Tick); only_full: of chunks dirty from end to end.
  Flight TakeDirty(FileCache& file, uint64_t begin, uint64_t end, uint64_t max_bytes, bool only_full,
                   uint64_t until);
  // Time as writes count it.
  uint64_t Tick();
  // Not ok, or not to be kept: the bytes are dropped.
  void FinishFlight(FileCache& file, const Flight& flight, bool ok);

  // Waits until no flight of bytes dirty before `until` is under way in [begin, end).
  Task<void> WaitFlights(FileCache& file, uint64_t begin, uint64_t end, uint64_t until = UINT64_MAX);

  bool InFlight(FileCache& file);

  // While a file is frozen no flight begins: its objects may be about to go.
  void Freeze(FileCache& file);
  void Thaw(FileCache& file);

  // Forgets [begin, end), dirty bytes too (`dropped` tells of blocks not dirty any more). Flights must have
  // ended there.
  void Drop(FileCache& file, uint64_t begin, uint64_t end, const BlockCount& dropped);

  bool IsDirty(FileCache& file);
  bool IsDirty(FileCache& file, uint64_t begin, uint64_t end);
  uint64_t FullChunks(FileCache& file);  // dirty from end to end

  // Waits while more is dirty than allowed.
  Task<void> WaitForRoom();
  bool OverHalfDirty();
  uint64_t cached_bytes();
  uint64_t dirty_bytes();

 private:
  friend class ChunkPins;
  DataCache() = default;

  void Unpin(const std::vector<Chunk*>& chunks);
  void Settle(Chunk* chunk);
  void Unlink(Chunk* chunk);
  void Detach(Chunk* chunk);
  bool TakeLocked(size_t count, std::vector<Chunk*>* out);
  Chunk* Attach(FileCache& file, uint64_t index, ChunkPins* spare);
  // Calls f(chunk, its offset, interval) for the chunks of [begin, end), taking absent ones out of `spare`,
  // until it returns false. How many are still absent.
  template <typename F>
  size_t ForEachChunk(FileCache& file, uint64_t begin, uint64_t end, ChunkPins* spare, F f);
  // The end of a fetch or a flight: bytes(chunk, interval) for each piece, finish(chunk) for each chunk. Who
  // waits for the file goes on.
  template <typename F, typename G>
  void Finish(FileCache& file, const std::vector<ChunkPiece>& pieces, F bytes, G finish);
  // Before and after a change of what is dirty in a chunk.
  void Uncount(Chunk* chunk);
  void Count(Chunk* chunk);
  void Wake(std::vector<OneShot<Unit>> waiters);
  void Serve(std::unique_lock<std::mutex> lock);

  size_t chunk_count_ = 0;
  uint64_t dirty_limit_ = 0;  // chunks
  std::shared_ptr<MemoryRegion> region_;

  std::mutex mutex_;
  std::vector<Chunk> chunks_;
  std::vector<Chunk*> free_;
  Chunk* oldest_ = nullptr;
  Chunk* newest_ = nullptr;
  uint64_t attached_ = 0;
  uint64_t dirty_chunks_ = 0;
  uint64_t tick_ = 1;
  struct Waiter {
    size_t count;
    OneShot<std::vector<Chunk*>> chunks;
  };
  std::deque<Waiter> allocations_;
  std::vector<OneShot<Unit>> room_waiters_;
};

// Freezes a file while it lives.
class Frozen {
 public:
  Frozen() = default;
  Frozen(std::shared_ptr<DataCache> cache, FileCache* file) : cache_(std::move(cache)), file_(file) {
    cache_->Freeze(*file_);
  }
  Frozen(Frozen&& other) noexcept : cache_(std::move(other.cache_)), file_(other.file_) {}
  Frozen& operator=(Frozen&& other) noexcept {
    std::swap(cache_, other.cache_);
    std::swap(file_, other.file_);
    return *this;
  }
  ~Frozen() {
    if (cache_ != nullptr) cache_->Thaw(*file_);
  }

 private:
  std::shared_ptr<DataCache> cache_;
  FileCache* file_ = nullptr;
};

// Blocks of 4 KiB that a set of intervals touches.
uint64_t BlocksTouched(const IntervalSet& set);

}  // namespace nacre::client
