// Everything that changes an object's extents without bytes from a client: truncate, punch, preallocate,
// destroy, seek.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/crc32c.h"
#include "server/object/object_store.h"

namespace nacre::ost {
namespace {

constexpr SessionId kOwnWork = 0;      // shares the pool as the MDS does
constexpr size_t kChunksAtOnce = 256;  // of one batch: 64 MiB of an object

}  // namespace

Task<StatusOr<std::optional<ObjectStore::Rewritten>>> ObjectStore::ZeroPart(ObjectState* object,
                                                                            uint64_t block, uint32_t from,
                                                                            uint32_t to, Allotment* memory) {
  CO_ASSIGN_OR_RETURN(const ChunkPtr chunk, chunks_.Load(object->id, block / kChunkBlocks));
  if (!chunk->is_written(static_cast<uint32_t>(block % kChunkBlocks))) co_return std::optional<Rewritten>();
  Allotment::Share share = co_await memory->Take(1);
  BufferPool::Pages page = pool_->Take(std::move(share), 1);
  std::byte* data = page.data(0);
  const Chunk* where = chunk.get();
  Status status = co_await ReadBlock(object, block, where, data);
  if (!status.ok()) co_return status;
  std::memset(data + from, 0, to - from);

  Space::Request request;
  request.blocks = 1;
  request.replaces = true;
  StatusOr<std::vector<BlockRun>> runs = co_await space_.Allocate(request);
  if (!runs.ok()) co_return runs.status();
  Rewritten rewritten{block, runs->front().first, Crc32c({data, kBlockSize})};
  std::vector<std::span<const std::byte>> buffers(1, std::span<const std::byte>(data, kBlockSize));
  if (journal_.closed()) co_return ErrnoError(ESHUTDOWN, "the server is stopping");
  status = co_await devices_.blocks->Write(rewritten.physical, buffers);
  if (!status.ok()) {
    space_.allocator().Free(*runs);
    co_return status;
  }
  std::vector<uint64_t> keys(1, BufferPool::CacheKey(slot_, rewritten.physical));
  std::vector<uint32_t> pages(1, page.index(0));
  pool_->Publish(keys, pages);
  co_return std::optional<Rewritten>(rewritten);
}

// Chunks with extents that touch blocks [first, end), the last ones of them, in ascending order.
StatusOr<std::vector<uint64_t>> ObjectStore::LastChunks(const ObjectId& id, uint64_t first, uint64_t end,
                                                        size_t limit) {
  std::vector<uint64_t> chunks;
  std::string from = ExtentKey(id, first / kChunkBlocks);
  std::string to = ExtentKey(id, (end - 1) / kChunkBlocks + 1);
  while (chunks.size() < limit) {
    StatusOr<KvEntry> last = devices_.store->Last(from, to);
    if (absl::IsNotFound(last.status())) break;
    if (!last.ok()) return last.status();
    ASSIGN_OR_RETURN(ExtentPlace place, ParseExtentKey(last->key));
    chunks.push_back(place.chunk);
    to = std::move(last->key);
  }
  std::reverse(chunks.begin(), chunks.end());
  return chunks;
}

Task<StatusOr<int64_t>> ObjectStore::Unmap(ObjectState* object, uint64_t first, uint64_t end,
                                           ObjectChange last) {
  int64_t delta = 0;
  // Nothing mapped is left from here to the end: looking there again would wade through the store's traces of
  // what the batches before have removed.
  uint64_t cleared = end;
  while (true) {
    CO_ASSIGN_OR_RETURN(std::vector<uint64_t> chunks,
                        LastChunks(object->id, first, cleared, kChunksAtOnce + 1));
    bool is_last = chunks.size() <= kChunksAtOnce;
    if (!is_last) chunks.erase(chunks.begin());
    ObjectChange change;
    change.frees_space = true;
    change.by = last.by;
    if (last.applied != nullptr) change.applied = &kIncomplete;
    for (uint64_t chunk : chunks) {
      uint64_t from = std::max(first, chunk * kChunkBlocks), to = std::min(end, (chunk + 1) * kChunkBlocks);
      if (from < to) change.edits.push_back({from, to - from});
    }
    if (is_last) {
      change.edits.insert(change.edits.end(), last.edits.begin(), last.edits.end());
      std::sort(change.edits.begin(), change.edits.end(), [](auto& a, auto& b) { return a.first < b.first; });
      change.cut_to = last.cut_to;
      change.destroy = last.destroy;
      change.ends_request = last.ends_request;
      change.applied = last.applied;
      change.parent = last.parent;
    } else if (last.cut_to || last.destroy) {
      change.cut_to = chunks.front() * kChunkBlocks * kBlockSize;
    }
    CO_ASSIGN_OR_RETURN(Journal::Committed committed, co_await journal_.Commit(object, change));
    delta += committed.delta;
    if (is_last) co_return delta;
    cleared = chunks.front() * kChunkBlocks;
    CO_RETURN_IF_ERROR(co_await LimitWaiting());
  }
}

Task<StatusOr<int64_t>> ObjectStore::Truncate(ObjectId id, uint64_t size, Originator* by) {
  CO_RETURN_IF_ERROR(CheckRange(size, 0));
  Allotment memory = co_await Admit(kOwnWork, 1);
  CO_ASSIGN_OR_RETURN(std::shared_ptr<ObjectState> object, objects_.Acquire(id));
  RangeLock::Guard guard = co_await object->locks.Lock(size / kBlockSize, RangeLock::kEnd, true);
  std::optional<ObjectRecord> record = object->Record();
  if (!record) co_return 0;
  uint64_t first = (size + kBlockSize - 1) / kBlockSize;
  CO_ASSIGN_OR_RETURN(std::vector<uint64_t> beyond, LastChunks(id, first, kMaxObjectBlocks, 1));
  if (size >= record->size && beyond.empty()) co_return 0;

  ObjectChange last;
  last.cut_to = size;
  last.by = by;
  last.ends_request = true;
  std::optional<Rewritten> tail;
  if (size % kBlockSize != 0 && size < record->size) {
    StatusOr<std::optional<Rewritten>> zeroed = co_await ZeroPart(
        object.get(), size / kBlockSize, static_cast<uint32_t>(size % kBlockSize), kBlockSize, &memory);
    if (!zeroed.ok()) co_return zeroed.status();
    tail = *zeroed;
  }
  if (tail) last.edits.push_back({tail->block, 1, &tail->physical, &tail->crc});
  StatusOr<int64_t> delta = co_await Unmap(object.get(), first, kMaxObjectBlocks, std::move(last));
  if (!delta.ok() && tail) space_.allocator().Free({{tail->physical, 1}});
  co_return delta;
}

Task<StatusOr<int64_t>> ObjectStore::Punch(ObjectId id, uint64_t offset, uint64_t length, Originator* by) {
  CO_RETURN_IF_ERROR(CheckRange(offset, length));
  if (length == 0) co_return 0;
  Allotment memory = co_await Admit(kOwnWork, 2);
  CO_ASSIGN_OR_RETURN(std::shared_ptr<ObjectState> object, objects_.Acquire(id));
  uint64_t end = offset + length;
  RangeLock::Guard guard = co_await object->locks.Lock(offset / kBlockSize, (end - 1) / kBlockSize + 1, true);
  std::optional<ObjectRecord> record = object->Record();
  if (!record) co_return 0;
  // Nothing lies behind the size but zeros: the last block may go whole.
  if (end >= record->size) end = std::max(end, (end + kBlockSize - 1) / kBlockSize * kBlockSize);

  uint64_t first = (offset + kBlockSize - 1) / kBlockSize, stop = end / kBlockSize;
  std::vector<Rewritten> parts;
  auto zero = [this](ObjectState* object, std::vector<Rewritten>* parts, uint64_t block, uint32_t from,
                     uint32_t to, Allotment* memory) -> Task<Status> {
    StatusOr<std::optional<Rewritten>> zeroed = co_await ZeroPart(object, block, from, to, memory);
    if (!zeroed.ok()) co_return zeroed.status();
    if (*zeroed) parts->push_back(**zeroed);
    co_return OkStatus();
  };
  Status status = OkStatus();
  auto head = static_cast<uint32_t>(offset % kBlockSize), tail = static_cast<uint32_t>(end % kBlockSize);
  if (offset / kBlockSize == end / kBlockSize) {
    status = co_await zero(object.get(), &parts, offset / kBlockSize, head, tail, &memory);
  } else {
    if (head != 0)
      status = co_await zero(object.get(), &parts, offset / kBlockSize, head, kBlockSize, &memory);
    if (status.ok() && tail != 0)
      status = co_await zero(object.get(), &parts, end / kBlockSize, 0, tail, &memory);
  }
  ObjectChange last;
  last.by = by;
  last.ends_request = true;
  for (Rewritten& part : parts) last.edits.push_back({part.block, 1, &part.physical, &part.crc});
  StatusOr<int64_t> delta = 0;
  if (!status.ok()) {
    delta = status;
  } else if (first < stop) {
    delta = co_await Unmap(object.get(), first, stop, std::move(last));
  } else if (!last.edits.empty()) {
    StatusOr<Journal::Committed> committed = co_await journal_.Commit(object.get(), last);
    if (committed.ok())
      delta = committed->delta;
    else
      delta = committed.status();
  }
  if (delta.ok()) co_return delta;
  for (const Rewritten& part : parts) space_.allocator().Free({{part.physical, 1}});
  co_return delta;
}

Task<StatusOr<int64_t>> ObjectStore::Destroy(ObjectId id, Originator* by, const Applied* applied) {
  CO_ASSIGN_OR_RETURN(std::shared_ptr<ObjectState> object, objects_.Acquire(id));
  RangeLock::Guard guard = co_await object->locks.Lock(0, RangeLock::kEnd, true);
  if (!object->Record()) co_return 0;
  ObjectChange last;
  last.destroy = true;
  last.by = by;
  last.applied = applied;
  StatusOr<int64_t> delta = co_await Unmap(object.get(), 0, kMaxObjectBlocks, std::move(last));
  if (delta.ok()) --object_count_;
  co_return delta;
}

Task<StatusOr<int64_t>> ObjectStore::Preallocate(ObjectId id, Fid parent, uint64_t offset, uint64_t length,
                                                 Originator* by) {
  CO_RETURN_IF_ERROR(CheckRange(offset, length));
  if (length == 0) co_return ErrnoError(EINVAL, "preallocation of 0 bytes");
  CO_ASSIGN_OR_RETURN(std::shared_ptr<ObjectState> object, objects_.Acquire(id));
  uint64_t first = offset / kBlockSize, end = (offset + length - 1) / kBlockSize + 1;
  RangeLock::Guard guard = co_await object->locks.Lock(first, end, true);
  int64_t delta = 0;
  for (uint64_t at = first; at < end;) {
    uint64_t stop = std::min(end, (at / kChunkBlocks + kChunksAtOnce) * kChunkBlocks);
    StatusOr<int64_t> added = co_await PreallocatePart(object.get(), parent, at, stop, by, stop == end);
    if (!added.ok()) co_return added;
    delta += *added;
    at = stop;
  }
  co_return delta;
}

Task<StatusOr<int64_t>> ObjectStore::PreallocatePart(ObjectState* object, Fid parent, uint64_t first,
                                                     uint64_t end, Originator* by, bool is_last) {
  std::vector<BlockRun> holes;  // of the object
  ChunkWalk walk(&chunks_, object->id);
  for (uint64_t block = first; block < end; ++block) {
    CO_RETURN_IF_ERROR(walk.To(block));
    if (!walk.chunk()->is_mapped(static_cast<uint32_t>(block % kChunkBlocks))) AppendBlock(&holes, block);
  }
  Space::Request request;
  for (const BlockRun& hole : holes) request.blocks += hole.count;
  if (request.blocks == 0 && object->Record().has_value()) co_return 0;
  std::vector<BlockRun> runs;
  if (request.blocks > 0) {
    StatusOr<std::vector<BlockRun>> allocated = co_await space_.Allocate(request);
    if (!allocated.ok()) co_return allocated.status();
    runs = *std::move(allocated);
  }
  std::vector<uint64_t> physical;
  physical.reserve(request.blocks);
  for (const BlockRun& run : runs) {
    for (uint64_t i = 0; i < run.count; ++i) physical.push_back(run.first + i);
  }
  ObjectChange change;
  change.parent = parent;
  change.by = by;
  change.ends_request = is_last;
  const uint64_t* next = physical.data();
  for (const BlockRun& hole : holes) {
    change.edits.push_back({hole.first, hole.count, next});
    next += hole.count;
  }
  StatusOr<Journal::Committed> committed = co_await journal_.Commit(object, change);
  if (!committed.ok()) {
    space_.allocator().Free(runs);
    co_return committed.status();
  }
  if (committed->made) ++object_count_;
  co_return committed->delta;
}

Task<StatusOr<std::optional<uint64_t>>> ObjectStore::Seek(ObjectId id, uint64_t offset, bool hole) {
  CO_RETURN_IF_ERROR(CheckRange(offset, 0));
  CO_ASSIGN_OR_RETURN(std::shared_ptr<ObjectState> object, objects_.Acquire(id));
  RangeLock::Guard guard = co_await object->locks.Lock(0, RangeLock::kEnd, false);
  std::optional<ObjectRecord> record = object->Record();
  uint64_t size = record ? record->size : 0;
  std::optional<uint64_t> none;
  if (offset >= size) co_return hole ? std::optional<uint64_t>(offset) : none;
  const std::string end = ExtentKey(id, (size - 1) / kBlockSize / kChunkBlocks + 1);
  uint64_t block = offset / kBlockSize;  // everything before it has been looked at
  auto place = [offset](uint64_t block) {
    return std::optional<uint64_t>(std::max(offset, block * kBlockSize));
  };
  while (true) {
    CO_ASSIGN_OR_RETURN(std::vector<KvEntry> entries,
                        devices_.store->Scan(ExtentKey(id, block / kChunkBlocks), end, kChunksAtOnce));
    for (const KvEntry& entry : entries) {
      CO_ASSIGN_OR_RETURN(ExtentPlace at, ParseExtentKey(entry.key));
      Chunk chunk;
      CO_RETURN_IF_ERROR(ParseChunk(entry.value, &chunk));
      if (at.chunk > block / kChunkBlocks && block % kChunkBlocks != 0)
        block = (block / kChunkBlocks + 1) * kChunkBlocks;
      if (at.chunk * kChunkBlocks > block) {
        if (hole) co_return place(block);
        block = at.chunk * kChunkBlocks;
      }
      for (; block / kChunkBlocks == at.chunk; ++block) {
        if (block * kBlockSize >= size) break;
        if (chunk.is_written(static_cast<uint32_t>(block % kChunkBlocks)) != hole) co_return place(block);
      }
    }
    if (entries.size() < kChunksAtOnce) break;
  }
  // Only holes from here to the end; the end itself is one.
  if (!hole) co_return none;
  co_return std::min(*place(block), size);
}

}  // namespace nacre::ost
