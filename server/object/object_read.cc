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

// One piece of a Read of an ObjectStore. The object's lock is held by the caller until Load has returned.
// `damaged`: where bad blocks are noted instead of repaired; may be null.
class RangeReader {
 public:
  RangeReader(ObjectStore* store, ObjectState* object, uint64_t offset, DataSink* sink, Allotment* memory,
              RangeRead* result, std::vector<ObjectStore::Damaged>* damaged = nullptr)
      : store_(store),
        pool_(*store->pool_),
        object_(object),
        offset_(offset),
        sink_(sink),
        memory_(memory),
        result_(result),
        damaged_(damaged) {}

  // Bytes [from, to) of the object, within one piece.
  Task<Status> Load(uint64_t from, uint64_t to) {
    CO_RETURN_IF_ERROR(MapBlocks(from, to));
    if (blocks_.empty()) co_return OkStatus();
    CO_RETURN_IF_ERROR(co_await Fill());
    Checksum(from, to);
    co_return OkStatus();
  }

  // Hands what was loaded to the sink, one call for what lies together, and notes the holes.
  Task<Status> Deliver(uint64_t from, uint64_t to) {
    auto pages = std::make_shared<BufferPool::Pages>(std::move(pages_));
    uint64_t at = from;
    for (size_t i = 0; i < blocks_.size();) {
      uint64_t begin = std::max(blocks_[i].block * kBlockSize, from);
      if (begin > at) AddHole(at, begin);
      std::vector<std::span<const std::byte>> buffers;
      at = begin;
      do {
        uint64_t start = blocks_[i].block * kBlockSize;
        uint64_t end = std::min(start + kBlockSize, to);
        const std::byte* data = pages->data(i);
        AppendBuffer(&buffers, data + (at - start), end - at);
        at = end;
        ++i;
      } while (i < blocks_.size() && blocks_[i].block == blocks_[i - 1].block + 1);
      Status status = co_await sink_->Deliver(begin - offset_, buffers, pages);
      if (!status.ok()) co_return status;
    }
    if (at < to) AddHole(at, to);
    co_return OkStatus();
  }

 private:
  struct Mapped {
    uint64_t block;
    uint64_t physical;
    uint32_t crc;
  };

  // blocks_: what is written, in order. Everything else is holes.
  Status MapBlocks(uint64_t from, uint64_t to) {
    blocks_.clear();
    uint64_t first = from / kBlockSize, last = (to - 1) / kBlockSize;
    Chunk chunk;
    for (uint64_t block = first; block <= last; ++block) {
      auto i = static_cast<uint32_t>(block % kChunkBlocks);
      if (block == first || i == 0) {
        RETURN_IF_ERROR(LoadChunk(store_->devices_.store, object_->id, block / kChunkBlocks, &chunk));
      }
      if (chunk.is_written(i)) blocks_.push_back({block, chunk.physical[i], chunk.crc[i]});
    }
    return OkStatus();
  }

  // Pages for all of blocks_, from the cache or the device.
  Task<Status> Fill() {
    keys_.clear();
    for (const Mapped& mapped : blocks_)
      keys_.push_back(BufferPool::CacheKey(store_->slot_, mapped.physical));
    Allotment::Share share = co_await memory_->Take(keys_.size());
    pages_ = pool_.Take(std::move(share), keys_, &cached_);
    co_return co_await ReadMissing();
  }

  // Device reads of what the cache has not, one for each run of blocks.
  Task<Status> ReadMissing() {
    std::vector<uint64_t> new_keys;
    std::vector<uint32_t> new_pages;
    std::vector<Task<Status>> reads;
    for (size_t i = 0; i < pages_.size();) {
      if (cached_[i]) {
        ++i;
        continue;
      }
      size_t begin = i;
      std::vector<std::span<std::byte>> buffers;
      do {
        new_keys.push_back(keys_[i]);
        new_pages.push_back(pages_.index(i));
        AppendBuffer(&buffers, pages_.data(i), kBlockSize);
        ++i;
      } while (i < pages_.size() && !cached_[i] && blocks_[i].physical == blocks_[i - 1].physical + 1);
      reads.push_back(ReadRun(begin, i - begin, std::move(buffers)));
    }
    if (reads.empty()) co_return OkStatus();
    Status status = OkStatus();
    if (reads.size() == 1) {
      status = co_await std::move(reads[0]);
    } else {
      std::vector<Status> all = co_await WhenAll(std::move(reads));
      for (Status& one : all) status.Update(one);
    }
    if (status.ok()) pool_.Publish(new_keys, new_pages);
    co_return status;
  }

  Task<Status> ReadRun(size_t begin, size_t count, std::vector<std::span<std::byte>> buffers) {
    uint64_t physical = blocks_[begin].physical;
    Status read = co_await store_->devices_.blocks->Read(physical, buffers);
    if (ToErrno(read) == ESHUTDOWN) co_return read;
    std::array<uint32_t, kPieceBlocks + 1> crc;
    size_t at = 0;
    for (std::span<std::byte> buffer : buffers) {
      Crc32cBlocks(0, buffer, crc.data() + at);
      at += buffer.size() / kBlockSize;
    }
    Status status = OkStatus();
    for (size_t i = 0; i < count; ++i) {
      const Mapped& mapped = blocks_[begin + i];
      if (read.ok() && crc[i] == mapped.crc) continue;
      std::string why(read.message());
      if (read.ok()) why = absl::StrFormat("checksum is %08x, should be %08x", crc[i], mapped.crc);
      if (damaged_ != nullptr) {
        status.Update(NoteDamaged(mapped, std::move(why)));
        continue;
      }
      ObjectStore::Suspect suspect{mapped.block, mapped.physical, mapped.crc, pages_.data(begin + i)};
      status.Update(co_await store_->Repair(object_, suspect, std::move(why)));
    }
    co_return status;
  }

  Status NoteDamaged(const Mapped& mapped, std::string why) {
    Status status = ErrnoError(
        EIO, absl::StrFormat("object %s block %d is bad: %s", object_->id.ToString(), mapped.block, why));
    std::lock_guard lock(mutex_);
    damaged_->push_back({mapped.block, mapped.physical, mapped.crc, std::move(why)});
    return status;
  }

  // The stored checksums; of a block that the range cuts, the checksum of the part.
  void Checksum(uint64_t from, uint64_t to) {
    uint64_t base = offset_ / kBlockSize;
    for (size_t i = 0; i < blocks_.size(); ++i) {
      uint64_t start = blocks_[i].block * kBlockSize;
      uint64_t cut_from = std::max(start, from), cut_to = std::min(start + kBlockSize, to);
      uint32_t crc = blocks_[i].crc;
      if (cut_to - cut_from < kBlockSize) {
        crc = Crc32c({pages_.data(i) + (cut_from - start), cut_to - cut_from});
      }
      result_->crc[blocks_[i].block - base] = crc;
    }
  }

  void AddHole(uint64_t from, uint64_t to) {
    std::vector<HoleRange>& holes = result_->holes;
    uint64_t offset = from - offset_;
    if (!holes.empty() && holes.back().offset + holes.back().length == offset) {
      holes.back().length += to - from;
      return;
    }
    holes.push_back({offset, to - from});
  }

  ObjectStore* const store_;
  BufferPool& pool_;
  ObjectState* const object_;
  const uint64_t offset_;
  DataSink* const sink_;
  Allotment* const memory_;
  RangeRead* const result_;
  std::vector<ObjectStore::Damaged>* const damaged_;
  std::mutex mutex_;  // of `damaged_`: runs are read side by side

  std::vector<Mapped> blocks_;
  std::vector<uint64_t> keys_;  // of blocks_, in the cache
  BufferPool::Pages pages_;     // of blocks_
  std::vector<bool> cached_;    // each of pages_
};

Status ObjectStore::CheckRead(uint64_t offset, uint64_t length) const {
  RETURN_IF_ERROR(CheckRange(offset, length));
  if (length <= kMaxRequestBytes) return OkStatus();
  return ErrnoError(EINVAL,
                    absl::StrCat("read of ", length, " bytes: at most ", kMaxRequestBytes, " at once"));
}

Task<RangeRead> ObjectStore::Read(ObjectId id, uint64_t offset, uint64_t length, DataSink* sink,
                                  Allotment* memory) {
  RangeRead result;
  result.status = CheckRead(offset, length);
  if (!result.status.ok() || length == 0) co_return result;
  StatusOr<std::shared_ptr<ObjectState>> object = objects_.Acquire(id);
  if (!object.ok()) {
    result.status = object.status();
    co_return result;
  }
  RangeLock::Guard guard =
      co_await (*object)->locks.Lock(offset / kBlockSize, (offset + length - 1) / kBlockSize + 1, false);
  std::optional<ObjectRecord> record = (*object)->Record();
  result.version = VersionOf(record);
  if (!record || record->size <= offset) co_return result;
  result.length = std::min(length, record->size - offset);
  result.crc.assign(CrcCount(offset, result.length), 0);
  const uint64_t end = offset + result.length;
  for (uint64_t at = offset; at < end && result.status.ok();) {
    uint64_t stop = std::min(end, (at / kBlockSize + kPieceBlocks) * kBlockSize);
    RangeReader reader(this, object->get(), offset, sink, memory, &result);
    result.status = co_await reader.Load(at, stop);
    if (result.status.ok()) result.status = co_await reader.Deliver(at, stop);
    at = stop;
  }
  co_return result;
}

// --- at a member that is not the head ---

Task<RangeRead> ObjectStore::ReadBesideChanges(ObjectId id, uint64_t offset, uint64_t length, DataSink* sink,
                                               Allotment* memory) {
  std::vector<Damaged> damaged;
  RangeRead result = co_await TryBesideChanges(id, offset, length, sink, memory, &damaged);
  if (damaged.empty()) co_return result;
  Status mended = co_await MendAll(id, std::move(damaged));
  // Not read again at once: the call's pages are for one time.
  if (mended.ok()) result.status = ErrnoError(EAGAIN, "blocks of the object were bad, and are repaired");
  co_return result;
}

// Each piece is read under the lock of its blocks, and the bytes are of one version if the object has the
// same at each of them: every change of the object gives it another one.
Task<RangeRead> ObjectStore::TryBesideChanges(ObjectId id, uint64_t offset, uint64_t length, DataSink* sink,
                                              Allotment* memory, std::vector<Damaged>* damaged) {
  RangeRead result;
  result.status = CheckRead(offset, length);
  if (!result.status.ok() || length == 0) co_return result;
  StatusOr<std::shared_ptr<ObjectState>> object = objects_.Acquire(id);
  if (!object.ok()) {
    result.status = object.status();
    co_return result;
  }
  uint64_t end = offset + length;
  for (uint64_t at = offset; at < end && result.status.ok();) {
    uint64_t stop = std::min(end, (at / kBlockSize + kPieceBlocks) * kBlockSize);
    RangeLock::Guard guard =
        co_await (*object)->locks.Lock(at / kBlockSize, (stop - 1) / kBlockSize + 1, /*exclusive=*/false);
    const std::optional<ObjectRecord> record = (*object)->Record();
    const ObjectVersion version = VersionOf(record);
    if (at == offset) {
      result.version = version;
      if (record && version == ObjectVersion{}) {
        result.status = ErrnoError(EAGAIN, "the object is not all there yet");
        co_return result;
      }
      if (!record || record->size <= offset) co_return result;
      result.length = std::min(length, record->size - offset);
      result.crc.assign(CrcCount(offset, result.length), 0);
      end = offset + result.length;
      stop = std::min(stop, end);
    } else if (version != result.version) {
      result.status = ErrnoError(EAGAIN, "the object was changed while it was read");
      co_return result;
    }
    RangeReader reader(this, object->get(), offset, sink, memory, &result, damaged);
    result.status = co_await reader.Load(at, stop);
    guard.Release();
    if (result.status.ok()) result.status = co_await reader.Deliver(at, stop);
    at = stop;
  }
  co_return result;
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
