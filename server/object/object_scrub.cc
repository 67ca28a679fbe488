// The scrubber's look at blocks (server/object/scrubber.h): reading them past the cache, comparing them with
// their checksums, and writing a bad one anew.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/bytes.h"
#include "common/crc32c.h"
#include "common/log.h"
#include "common/metrics.h"
#include "server/object/aligned_buffer.h"
#include "server/object/object_store.h"

namespace nacre::ost {

// The written blocks of a range that lie one behind the other on the disk, and their verification.
class RunVerifier {
 public:
  RunVerifier(BlockStore* disk, std::byte* memory, ObjectStore::Verified* result)
      : disk_(disk), memory_(memory), result_(result) {}

  void Add(uint64_t block, uint64_t physical, uint32_t crc) { blocks_.push_back({block, physical, crc, ""}); }

  Task<Status> Run() {
    for (size_t begin = 0; begin < blocks_.size();) {
      size_t end = begin + 1;
      while (end < blocks_.size() && blocks_[end].physical == blocks_[end - 1].physical + 1) ++end;
      CO_RETURN_IF_ERROR(co_await VerifyRun(begin, end));
      begin = end;
    }
    co_return OkStatus();
  }

 private:
  Task<Status> VerifyRun(size_t begin, size_t end) {
    std::vector<std::span<std::byte>> buffers(1, std::span(memory_, (end - begin) * kBlockSize));
    const Status read = co_await disk_->Read(blocks_[begin].physical, buffers);
    if (ToErrno(read) == ESHUTDOWN) co_return read;
    if (!read.ok() && end - begin > 1) {  // which of them is it?
      for (size_t i = begin; i < end; ++i) CO_RETURN_IF_ERROR(co_await VerifyRun(i, i + 1));
      co_return OkStatus();
    }
    result_->blocks += end - begin;
    for (size_t i = begin; i < end; ++i) {
      std::string why(read.message());
      if (read.ok()) {
        const uint32_t crc = Crc32c({memory_ + (i - begin) * kBlockSize, kBlockSize});
        if (crc == blocks_[i].crc) continue;
        why = absl::StrFormat("checksum is %08x, should be %08x", crc, blocks_[i].crc);
      }
      result_->damaged.push_back(blocks_[i]);
      result_->damaged.back().why = std::move(why);
    }
    co_return OkStatus();
  }

  BlockStore* const disk_;
  std::byte* const memory_;
  ObjectStore::Verified* const result_;
  std::vector<ObjectStore::Damaged> blocks_;
};

Task<StatusOr<ObjectStore::Verified>> ObjectStore::Verify(ObjectId id, uint64_t first, uint64_t count,
                                                          std::byte* memory) {
  CO_ASSIGN_OR_RETURN(std::shared_ptr<ObjectState> object, objects_.Acquire(id));
  RangeLock::Guard guard = co_await object->locks.Lock(first, first + count, /*exclusive=*/false);
  Verified result;
  RunVerifier verifier(devices_.blocks, memory, &result);
  Chunk chunk;
  for (uint64_t block = first; block < first + count; ++block) {
    const auto i = static_cast<uint32_t>(block % kChunkBlocks);
    if (block == first || i == 0)
      CO_RETURN_IF_ERROR(LoadChunk(devices_.store, id, block / kChunkBlocks, &chunk));
    if (chunk.is_written(i)) verifier.Add(block, chunk.physical[i], chunk.crc[i]);
  }
  CO_RETURN_IF_ERROR(co_await verifier.Run());
  co_return result;
}

// The content is fetched with nothing locked: a change that another member has made already may wait for this
// one, and the one who is asked for that change.
Task<StatusOr<ObjectStore::Mended>> ObjectStore::Mend(ObjectId id, Damaged damaged,
                                                      std::span<std::byte> page) {
  if (options_.plant_blind_mend) co_return co_await TakeForGood(id, std::move(damaged), page);
  bool found =
      pool_->Copy(BufferPool::CacheKey(slot_, damaged.physical), page.data()) && Crc32c(page) == damaged.crc;
  if (!found && journal_.replicator() != nullptr) {
    const Status fetched =
        co_await journal_.replicator()->FetchFromAny({id, damaged.block, damaged.crc}, page);
    found = fetched.ok();
  }
  CO_ASSIGN_OR_RETURN(std::shared_ptr<ObjectState> object, objects_.Acquire(id));
  RangeLock::Guard guard = co_await object->locks.Lock(damaged.block, damaged.block + 1, /*exclusive=*/true);
  Chunk chunk;
  const auto i = static_cast<uint32_t>(damaged.block % kChunkBlocks);
  CO_RETURN_IF_ERROR(LoadChunk(devices_.store, id, damaged.block / kChunkBlocks, &chunk));
  if (!chunk.is_written(i) || chunk.physical[i] != damaged.physical || chunk.crc[i] != damaged.crc)
    co_return Mended::kGone;
  if (!found) co_return Mended::kNot;
  std::vector<std::span<const std::byte>> buffers(1, page);
  const Status written = co_await devices_.blocks->Write(damaged.physical, buffers);
  if (ToErrno(written) == ESHUTDOWN) co_return written;
  if (!written.ok()) co_return Mended::kNot;
  rewritten_ = true;
  static Counter& repaired = GetCounter("ost.repaired_blocks");
  repaired.Add();
  LogWarning("OST %d: object %s block %d (device block %d) was bad, and is repaired: %s", devices_.index,
             id.ToString(), damaged.block, damaged.physical, damaged.why);
  co_return Mended::kRepaired;
}

Task<StatusOr<bool>> ObjectStore::MendRange(ObjectId id, uint64_t first, uint64_t count) {
  AlignedBuffer memory = MakeAligned(count * kBlockSize);
  CO_ASSIGN_OR_RETURN(Verified verified, co_await Verify(id, first, count, memory.get()));
  const bool any = !verified.damaged.empty();
  CO_RETURN_IF_ERROR(co_await MendAll(id, std::move(verified.damaged)));
  co_return any;
}

// No undo record names such a block, so no sync of the journal knows that there is something to flush.
Task<Status> ObjectStore::FlushRewritten() {
  AsyncMutex::Guard guard = co_await flushing_.Lock();
  if (!rewritten_.exchange(false)) co_return OkStatus();
  Status flushed = co_await journal_.FlushData();
  if (!flushed.ok()) rewritten_ = true;
  co_return flushed;
}

Task<StatusOr<ObjectStore::Mended>> ObjectStore::TakeForGood(ObjectId id, Damaged damaged,
                                                             std::span<std::byte> page) {
  CO_ASSIGN_OR_RETURN(std::shared_ptr<ObjectState> object, objects_.Acquire(id));
  RangeLock::Guard guard = co_await object->locks.Lock(damaged.block, damaged.block + 1, /*exclusive=*/true);
  Chunk chunk;
  const auto i = static_cast<uint32_t>(damaged.block % kChunkBlocks);
  CO_RETURN_IF_ERROR(LoadChunk(devices_.store, id, damaged.block / kChunkBlocks, &chunk));
  if (!chunk.is_written(i) || chunk.physical[i] != damaged.physical) co_return Mended::kGone;
  std::vector<std::span<std::byte>> buffers(1, page);
  CO_RETURN_IF_ERROR(co_await devices_.blocks->Read(damaged.physical, buffers));
  chunk.MapWritten(i, damaged.physical, Crc32c(page));
  KvBatch batch;
  batch.Put(ExtentKey(id, damaged.block / kChunkBlocks), EncodeChunk(chunk));
  chunks_.BeginChange(id, damaged.block / kChunkBlocks);
  const Status stored = co_await devices_.store->Commit(std::move(batch));
  chunks_.EndChange(id, damaged.block / kChunkBlocks, stored.ok() ? &chunk : nullptr);
  CO_RETURN_IF_ERROR(stored);
  co_return Mended::kRepaired;
}

void ObjectStore::Report(ObjectId id, const Damaged& damaged) {
  auto object = objects_.Acquire(id);
  if (object.ok()) (void)BadBlock(object->get(), damaged.block, damaged.physical, damaged.why);
}

StatusOr<uint32_t> ObjectStore::Digest(ObjectId id, uint64_t first, uint64_t count) {
  std::string mapped;
  ASSIGN_OR_RETURN(std::vector<KvEntry> entries,
                   devices_.store->Scan(ExtentKey(id, first / kChunkBlocks),
                                        ExtentKey(id, (first + count) / kChunkBlocks), SIZE_MAX));
  for (const KvEntry& entry : entries) {
    ASSIGN_OR_RETURN(const ExtentPlace place, ParseExtentKey(entry.key));
    Chunk chunk;
    RETURN_IF_ERROR(ParseChunk(entry.value, &chunk));
    for (uint32_t i = 0; i < kChunkBlocks; ++i) {
      if (!chunk.is_mapped(i)) continue;
      PutLittle(&mapped, place.chunk * kChunkBlocks + i);
      PutLittle(&mapped, static_cast<uint8_t>(chunk.is_written(i)));
      PutLittle(&mapped, chunk.is_written(i) ? chunk.crc[i] : uint32_t{0});
    }
  }
  return Crc32c(std::as_bytes(std::span(mapped)));
}

}  // namespace nacre::ost
