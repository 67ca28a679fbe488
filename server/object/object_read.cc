// Reading: extents -> cache and device -> sink, a piece of at most 1 MiB at a time.
#include <algorithm>
#include <array>
#include <cerrno>
#include <mutex>

#include "common/crc32c.h"
#include "common/log.h"
#include "common/metrics.h"
#include "server/object/aligned_buffer.h"
#include "server/object/object_store.h"

namespace nacre::ost {

// One piece of one read, or small reads that go together: at most kPieceBlocks, of parts that are loaded side
// by side and delivered in their order. The parts' blocks are locked by the caller until Load has returned.
// `damaged`: where bad blocks are noted instead of repaired; may be null.
class PieceReader {
 public:
  PieceReader(ObjectStore* store, DataSink* sink, Allotment* memory,
              std::vector<ObjectStore::Damaged>* damaged = nullptr)
      : store_(store), pool_(*store->pool_), sink_(sink), memory_(memory), damaged_(damaged) {}

  // Bytes [from, to) of the object, not none, which lie at `sink_offset` of the sink. `result` is of a read
  // that begins at `offset`; a part that fails says so there, and the others go on.
  struct Part {
    ObjectState* object;
    RangeRead* result;
    uint64_t offset, from, to;
    uint64_t sink_offset;
  };
  void Add(const Part& part) { parts_.push_back(part); }

  Task<void> Load() {
    for (uint32_t i = 0; i < parts_.size(); ++i) {
      const size_t before = blocks_.size();
      Status mapped = MapBlocks(i);
      if (mapped.ok()) continue;
      Fail(i, mapped);
      blocks_.resize(before);
    }
    if (blocks_.empty()) co_return;
    for (const Mapped& mapped : blocks_)
      keys_.push_back(BufferPool::CacheKey(store_->slot_, mapped.physical));
    Allotment::Share share = co_await memory_->Take(keys_.size());
    pages_ = pool_.Take(std::move(share), keys_, &cached_);
    co_await ReadMissing();
    for (size_t i = 0; i < blocks_.size(); ++i) Checksum(i);
  }

  // Hands what was loaded to the sink, one call for what lies together there, and notes the holes.
  Task<void> Deliver() {
    keep_ = std::make_shared<BufferPool::Pages>(std::move(pages_));
    size_t next = 0;  // of blocks_
    for (uint32_t i = 0; i < parts_.size(); ++i) {
      const Part& part = parts_[i];
      const bool fails = !part.result->status.ok();
      uint64_t at = part.from;
      for (; next < blocks_.size() && blocks_[next].part == i; ++next) {
        if (fails) continue;
        const uint64_t start = blocks_[next].block * kBlockSize;
        const uint64_t begin = std::max(start, part.from), end = std::min(start + kBlockSize, part.to);
        if (begin > at) AddHole(part, at, begin);
        const uint64_t place = part.sink_offset + (begin - part.from);
        if (place != pending_end_ && !pending_.empty()) co_await DeliverPending();
        if (pending_.empty()) pending_begin_ = place;
        const std::byte* data = keep_->data(next);
        AppendBuffer(&pending_, data + (begin - start), end - begin);
        if (pending_parts_.empty() || pending_parts_.back() != i) pending_parts_.push_back(i);
        pending_end_ = place + (end - begin);
        at = end;
      }
      if (at < part.to && !fails) AddHole(part, at, part.to);
    }
    if (!pending_.empty()) co_await DeliverPending();
  }

 private:
  struct Mapped {
    uint64_t block;
    uint64_t physical;
    uint32_t crc;
    uint32_t part;
  };

  void Fail(uint32_t part, const Status& status) { parts_[part].result->status.Update(status); }

  // Adds what is written, in order. Everything else is holes.
  Status MapBlocks(uint32_t number) {
    const Part& part = parts_[number];
    const uint64_t first = part.from / kBlockSize, last = (part.to - 1) / kBlockSize;
    ChunkWalk walk(&store_->chunks_, part.object->id);
    for (uint64_t block = first; block <= last; ++block) {
      RETURN_IF_ERROR(walk.To(block));
      const Chunk& chunk = *walk.chunk();
      const auto i = static_cast<uint32_t>(block % kChunkBlocks);
      if (chunk.is_written(i)) blocks_.push_back({block, chunk.physical[i], chunk.crc[i], number});
    }
    return OkStatus();
  }

  // Device reads of what the cache has not, one for each run of blocks.
  Task<void> ReadMissing() {
    std::vector<Task<bool>> reads;
    std::vector<uint64_t> new_keys;
    std::vector<uint32_t> new_pages;
    for (size_t i = 0; i < pages_.size();) {
      if (cached_[i]) {
        ++i;
        continue;
      }
      const size_t begin = i;
      std::vector<std::span<std::byte>> buffers;
      do {
        new_keys.push_back(keys_[i]);
        new_pages.push_back(pages_.index(i));
        AppendBuffer(&buffers, pages_.data(i), kBlockSize);
        ++i;
      } while (i < pages_.size() && !cached_[i] && blocks_[i].physical == blocks_[i - 1].physical + 1);
      reads.push_back(ReadRun(begin, i - begin, std::move(buffers)));
    }
    if (reads.empty()) co_return;
    bool all = true;
    if (reads.size() == 1) {
      all = co_await std::move(reads[0]);
    } else {
      for (const bool good : co_await WhenAll(std::move(reads))) all = all && good;
    }
    if (all) pool_.Publish(new_keys, new_pages);
  }

  // Whether every block has what it should have; the parts of those that have not fail.
  Task<bool> ReadRun(size_t begin, size_t count, std::vector<std::span<std::byte>> buffers) {
    const uint64_t physical = blocks_[begin].physical;
    const Status read = co_await store_->devices_.blocks->Read(physical, buffers);
    std::array<uint32_t, kPieceBlocks + 1> crc;
    size_t at = 0;
    for (std::span<std::byte> buffer : buffers) {
      Crc32cBlocks(0, buffer, crc.data() + at);
      at += buffer.size() / kBlockSize;
    }
    bool good = true;
    for (size_t i = 0; i < count; ++i) {
      const Mapped& mapped = blocks_[begin + i];
      if (read.ok() && crc[i] == mapped.crc) continue;
      Status status = read;
      if (ToErrno(read) != ESHUTDOWN) {
        std::string why(read.message());
        if (read.ok()) why = absl::StrFormat("checksum is %08x, should be %08x", crc[i], mapped.crc);
        status = co_await Mend(mapped, pages_.data(begin + i), std::move(why));
      }
      good = good && status.ok();
      std::lock_guard lock(mutex_);
      Fail(mapped.part, status);
    }
    co_return good;
  }

  Task<Status> Mend(const Mapped& mapped, std::byte* page, std::string why) {
    ObjectState* object = parts_[mapped.part].object;
    if (damaged_ == nullptr) {
      ObjectStore::Suspect suspect{mapped.block, mapped.physical, mapped.crc, page};
      co_return co_await store_->Repair(object, suspect, std::move(why));
    }
    Status status = ErrnoError(
        EIO, absl::StrFormat("object %s block %d is bad: %s", object->id.ToString(), mapped.block, why));
    std::lock_guard lock(mutex_);
    damaged_->push_back({mapped.block, mapped.physical, mapped.crc, std::move(why)});
    co_return status;
  }

  // The stored checksum; of a block that the part cuts, the checksum of what is left.
  void Checksum(size_t i) {
    const Mapped& mapped = blocks_[i];
    const Part& part = parts_[mapped.part];
    const uint64_t start = mapped.block * kBlockSize;
    const uint64_t begin = std::max(start, part.from), end = std::min(start + kBlockSize, part.to);
    uint32_t crc = mapped.crc;
    if (end - begin < kBlockSize) crc = Crc32c({pages_.data(i) + (begin - start), end - begin});
    part.result->crc[mapped.block - part.offset / kBlockSize] = crc;
  }

  static void AddHole(const Part& part, uint64_t from, uint64_t to) {
    std::vector<HoleRange>& holes = part.result->holes;
    const uint64_t offset = from - part.offset;
    if (!holes.empty() && holes.back().offset + holes.back().length == offset) {
      holes.back().length += to - from;
      return;
    }
    holes.push_back({offset, to - from});
  }

  Task<void> DeliverPending() {
    const Status status = co_await sink_->Deliver(pending_begin_, pending_, keep_);
    if (!status.ok()) {
      for (const uint32_t part : pending_parts_) Fail(part, status);
    }
    pending_.clear();
    pending_parts_.clear();
  }

  ObjectStore* const store_;
  BufferPool& pool_;
  DataSink* const sink_;
  Allotment* const memory_;
  std::vector<ObjectStore::Damaged>* const damaged_;
  std::mutex mutex_;  // of `damaged_` and the parts' results: runs are read side by side

  absl::InlinedVector<Part, 1> parts_;
  std::vector<Mapped> blocks_;
  std::vector<uint64_t> keys_;  // of blocks_, in the cache
  BufferPool::Pages pages_;     // of blocks_
  std::vector<bool> cached_;    // each of pages_

  std::shared_ptr<BufferPool::Pages> keep_;
  // To be delivered next: bytes that lie together in the sink, and whose they are.
  std::vector<std::span<const std::byte>> pending_;
  uint64_t pending_begin_ = 0, pending_end_ = 0;
  absl::InlinedVector<uint32_t, 1> pending_parts_;
};

namespace {

uint64_t EndOfPiece(uint64_t from) { return (from / kBlockSize + kPieceBlocks) * kBlockSize; }

// All of it.
PieceReader::Part PartOf(ObjectState* object, RangeToRead* range) {
  const uint64_t end = range->offset + range->result.length;
  return {object, &range->result, range->offset, range->offset, end, range->sink_offset};
}

}  // namespace

Status ObjectStore::CheckRead(uint64_t offset, uint64_t length) const {
  RETURN_IF_ERROR(CheckRange(offset, length));
  if (length <= kMaxRequestBytes) return OkStatus();
  return ErrnoError(EINVAL,
                    absl::StrCat("read of ", length, " bytes: at most ", kMaxRequestBytes, " at once"));
}

Task<RangeRead> ObjectStore::Read(ObjectId id, uint64_t offset, uint64_t length, DataSink* sink,
                                  Allotment* memory) {
  RangeToRead range{id, offset, length};
  co_await ReadTogether(std::span(&range, 1), sink, memory);
  co_return std::move(range.result);
}

Task<void> ObjectStore::ReadTogether(std::span<RangeToRead> ranges, DataSink* sink, Allotment* memory) {
  if (ranges.size() == 1) co_return co_await ReadAlone(&ranges.front(), sink, memory);
  std::vector<RangeToRead*> alone;
  {
    std::vector<std::shared_ptr<ObjectState>> objects;
    std::vector<RangeLock::Guard> guards;
    PieceReader reader(this, sink, memory);
    for (RangeToRead& range : ranges) {
      std::shared_ptr<ObjectState> object = Find(&range);
      if (object == nullptr) continue;
      // Nobody waits for a lock while he has another one.
      RangeLock::Guard guard = object->locks.TryLock(range.first_block(), range.end_block(), false);
      if (!guard) {
        alone.push_back(&range);
        continue;
      }
      if (BeginRead(object->Record(), &range)) reader.Add(PartOf(object.get(), &range));
      guards.push_back(std::move(guard));
      objects.push_back(std::move(object));
    }
    co_await reader.Load();
    co_await reader.Deliver();
  }
  for (RangeToRead* range : alone) co_await ReadAlone(range, sink, memory);
}

// Null: it is answered already.
std::shared_ptr<ObjectState> ObjectStore::Find(RangeToRead* range) {
  range->result.status = CheckRead(range->offset, range->length);
  if (!range->result.status.ok() || range->length == 0) return nullptr;
  StatusOr<std::shared_ptr<ObjectState>> object = objects_.Acquire(range->object);
  range->result.status = object.status();
  return object.ok() ? *std::move(object) : nullptr;
}

// The range is locked, or its first piece. False: there is nothing to read.
bool ObjectStore::BeginRead(const std::optional<ObjectRecord>& record, RangeToRead* range) {
  range->result.version = VersionOf(record);
  if (!record || record->size <= range->offset) return false;
  range->result.length = std::min(range->length, record->size - range->offset);
  range->result.crc.assign(CrcCount(range->offset, range->result.length), 0);
  return true;
}

Task<void> ObjectStore::ReadAlone(RangeToRead* range, DataSink* sink, Allotment* memory) {
  const std::shared_ptr<ObjectState> object = Find(range);
  if (object == nullptr) co_return;
  RangeLock::Guard guard = co_await object->locks.Lock(range->first_block(), range->end_block(), false);
  if (!BeginRead(object->Record(), range)) co_return;
  PieceReader::Part part = PartOf(object.get(), range);
  for (const uint64_t end = part.to; part.from < end && range->result.status.ok(); part.from = part.to) {
    part.to = std::min(end, EndOfPiece(part.from));
    part.sink_offset = range->sink_offset + (part.from - range->offset);
    PieceReader reader(this, sink, memory);
    reader.Add(part);
    co_await reader.Load();
    co_await reader.Deliver();
  }
}

// --- at a member that is not the head ---

Task<RangeRead> ObjectStore::ReadBesideChanges(ObjectId id, uint64_t offset, uint64_t length, DataSink* sink,
                                               Allotment* memory) {
  RangeToRead range{id, offset, length};
  std::vector<Damaged> damaged;
  co_await TryBesideChanges(&range, sink, memory, &damaged);
  if (damaged.empty()) co_return std::move(range.result);
  Status mended = co_await MendAll(id, std::move(damaged));
  // Not read again at once: the call's pages are for one time.
  if (mended.ok())
    range.result.status = ErrnoError(EAGAIN, "blocks of the object were bad, and are repaired");
  co_return std::move(range.result);
}

// Each piece is read under the lock of its blocks, and the bytes are of one version if the object has the
// same at each of them: every change of the object gives it another one.
Task<void> ObjectStore::TryBesideChanges(RangeToRead* range, DataSink* sink, Allotment* memory,
                                         std::vector<Damaged>* damaged) {
  const std::shared_ptr<ObjectState> object = Find(range);
  if (object == nullptr) co_return;
  RangeRead& result = range->result;
  uint64_t end = range->offset + range->length;
  for (uint64_t at = range->offset; at < end && result.status.ok();) {
    uint64_t stop = std::min(end, EndOfPiece(at));
    RangeLock::Guard guard =
        co_await object->locks.Lock(at / kBlockSize, (stop - 1) / kBlockSize + 1, /*exclusive=*/false);
    const std::optional<ObjectRecord> record = object->Record();
    const ObjectVersion version = VersionOf(record);
    if (at == range->offset) {
      const bool some = BeginRead(record, range);
      if (record && version == ObjectVersion{}) {
        result.status = ErrnoError(EAGAIN, "the object is not all there yet");
        co_return;
      }
      if (!some) co_return;
      end = range->offset + result.length;
      stop = std::min(stop, end);
    } else if (version != result.version) {
      result.status = ErrnoError(EAGAIN, "the object was changed while it was read");
      co_return;
    }
    PieceReader reader(this, sink, memory, damaged);
    reader.Add({object.get(), &result, range->offset, at, stop, at - range->offset});
    co_await reader.Load();
    guard.Release();
    co_await reader.Deliver();
    at = stop;
  }
}

// Not OK: one of them is bad still.
Task<Status> ObjectStore::MendAll(ObjectId id, std::vector<Damaged> damaged) {
  AlignedBuffer page = MakeAligned(kBlockSize);
  Status status = OkStatus();
  for (const Damaged& block : damaged) {
    auto mended = co_await Mend(id, block, std::span(page.get(), kBlockSize));
    CO_RETURN_IF_ERROR(mended.status());
    if (*mended != Mended::kNot) continue;
    Report(id, block);
    status.Update(ErrnoError(EIO, block.why));
  }
  co_return status;
}

Task<StatusOr<ObjectVersion>> ObjectStore::VersionAt(ObjectId id, uint64_t offset, uint64_t length) {
  CO_RETURN_IF_ERROR(CheckRead(offset, length));
  CO_ASSIGN_OR_RETURN(std::shared_ptr<ObjectState> object, objects_.Acquire(id));
  RangeLock::Guard guard;
  if (length > 0)
    guard = co_await object->locks.Lock(offset / kBlockSize, (offset + length - 1) / kBlockSize + 1,
                                        /*exclusive=*/false);
  co_return VersionOf(object->Record());
}

Task<Status> ObjectStore::ReadBlock(ObjectState* object, uint64_t block, const Chunk* chunk,
                                    std::byte* page) {
  auto i = static_cast<uint32_t>(block % kChunkBlocks);
  uint64_t physical = chunk->physical[i];
  if (pool_->Copy(BufferPool::CacheKey(slot_, physical), page)) co_return OkStatus();
  std::vector<std::span<std::byte>> buffers(1, std::span<std::byte>(page, kBlockSize));
  Status read = co_await devices_.blocks->Read(physical, buffers);
  if (ToErrno(read) == ESHUTDOWN) co_return read;
  uint32_t crc = Crc32c(buffers[0]);
  if (read.ok() && crc == chunk->crc[i]) co_return OkStatus();
  std::string why(read.message());
  if (read.ok()) why = absl::StrFormat("checksum is %08x, should be %08x", crc, chunk->crc[i]);
  Suspect suspect{block, physical, chunk->crc[i], page};
  co_return co_await Repair(object, suspect, std::move(why));
}

// The block is where it was afterwards: what its checksum says is what it should have held.
Task<Status> ObjectStore::Repair(ObjectState* object, Suspect suspect, std::string why) {
  Status fetched = ErrnoError(ENODEV, "there is no other member");
  std::span<std::byte> page(suspect.page, kBlockSize);
  if (Replicator* others = journal_.replicator(); others != nullptr)
    fetched = co_await others->FetchBlock({object->id, suspect.block, suspect.crc}, page);
  if (ToErrno(fetched) == ECONNRESET) co_return fetched;
  if (!fetched.ok()) co_return BadBlock(object, suspect.block, suspect.physical, why);
  static Counter& repaired = GetCounter("ost.repaired_blocks");
  repaired.Add();
  LogWarning("OST %d: object %s block %d (device block %d) was bad, and is repaired from another member: %s",
             devices_.index, object->id.ToString(), suspect.block, suspect.physical, why);
  std::vector<std::span<const std::byte>> buffers(1, page);
  Status written = co_await devices_.blocks->Write(suspect.physical, buffers);
  if (!written.ok()) (void)BadBlock(object, suspect.block, suspect.physical, std::string(written.message()));
  rewritten_ = true;
  co_return OkStatus();
}

}  // namespace nacre::ost
