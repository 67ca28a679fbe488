#include "server/object/check.h"

#include <algorithm>
#include <cerrno>
#include <memory>

#include "common/crc32c.h"
#include "server/kv/kv_pages.h"
#include "server/kv/losses.h"
#include "server/object/aligned_buffer.h"
#include "server/object/journal.h"
#include "server/object/object_table.h"

namespace nacre::ost {
namespace {

constexpr uint64_t kBatchOps = 200;

// Walks over all records with one prefix, in order.
class Cursor {
 public:
  Cursor(KvStore* store, std::string prefix) : pages_(*store, std::move(prefix)) {}

  // null: the end.
  StatusOr<const KvEntry*> Peek() {
    if (next_ < entries_.size()) return &entries_[next_];
    if (!pages_.more()) return nullptr;
    ASSIGN_OR_RETURN(entries_, pages_.Next());
    next_ = 0;
    return entries_.empty() ? nullptr : &entries_[0];
  }
  void Next() { ++next_; }

 private:
  KvPages<KvStore> pages_;
  std::vector<KvEntry> entries_;
  size_t next_ = 0;
};

class Checker {
 public:
  Checker(OstDevices devices, CheckOptions* options)
      : devices_(std::move(devices)),
        options_(*options),
        used_((devices_.blocks->block_count() + 63) / 64),
        buffer_(MakeAligned(kChunkBlocks * kBlockSize)) {}

  Task<StatusOr<CheckReport>> Run() {
    CO_RETURN_IF_ERROR(ReadSuperblock());
    CO_RETURN_IF_ERROR(ReadUndo());
    if (options_.repair) {
      CO_ASSIGN_OR_RETURN(const bool lost,
                          MayHaveLost(devices_.store, std::string(kLossesKey), options_.boot));
      ChunkCache chunks(devices_.store, ChunkCache::kLeast);
      Journal journal(devices_.store, devices_.blocks, nullptr, &chunks);
      CO_RETURN_IF_ERROR((co_await journal.Recover(lost)).status());
    }
    Status status = co_await WalkObjects();
    if (!status.ok()) co_return status;
    if (options_.repair) {
      status = co_await SeparateOverlaps();
      if (!status.ok()) co_return status;
      CO_RETURN_IF_ERROR(co_await Flush());
      status = co_await devices_.store->Sync();
      if (!status.ok()) co_return status;
    }
    co_return std::move(report_);
  }

 private:
  struct Tally {  // of one object, from its extents
    uint64_t blocks = 0;
    uint64_t unwritten = 0;
    uint64_t end = 0;  // behind the last written block
  };
  struct Overlap {
    ObjectId object;
    uint64_t block;
    size_t problem;
  };

  size_t Problem(CheckProblem::Kind kind, const ObjectId& object, std::string text, bool repaired = false) {
    ++report_.problem_count;
    if (report_.problems.size() >= kMaxProblems) return report_.problems.size();
    report_.problems.push_back({kind, object, std::move(text), repaired});
    return report_.problems.size() - 1;
  }

  Status ReadSuperblock() {
    StatusOr<std::string> value = devices_.store->Get(kSuperblockKey);
    if (absl::IsNotFound(value.status())) {
      return ErrnoError(ENOENT, absl::StrCat(devices_.directory, " holds no OST: there is no superblock"));
    }
    if (!value.ok()) return value.status();
    ASSIGN_OR_RETURN(report_.superblock, ParseSuperblock(*value));
    return OkStatus();
  }

  Status ReadUndo() {
    Cursor cursor(devices_.store, "U");
    while (true) {
      ASSIGN_OR_RETURN(const KvEntry* entry, cursor.Peek());
      if (entry == nullptr) return OkStatus();
      ++report_.undo_records;
      StatusOr<UndoRecord> undo = ParseUndoRecord(entry->value);
      if (!undo.ok()) Problem(CheckProblem::Kind::kMalformed, {}, std::string(undo.status().message()));
      cursor.Next();
    }
  }

  // --- the walk ---

  // Objects and extents are both in the order of object ids.
  Task<Status> WalkObjects() {
    Cursor objects(devices_.store, "O"), extents(devices_.store, "E");
    while (true) {
      CO_ASSIGN_OR_RETURN(const KvEntry* object, objects.Peek());
      CO_ASSIGN_OR_RETURN(std::optional<ObjectId> extent_id, NextExtentId(&extents));
      if (object == nullptr && !extent_id) co_return OkStatus();
      std::optional<ObjectId> object_id;
      if (object != nullptr) {
        StatusOr<ObjectId> parsed = ParseObjectKey(object->key);
        if (!parsed.ok()) {
          Malformed(*object, {}, parsed.status());
          objects.Next();
          continue;
        }
        object_id = *parsed;
      }
      std::optional<ObjectRecord> record;
      ObjectId id = extent_id && (!object_id || *extent_id < *object_id) ? *extent_id : *object_id;
      if (object_id == id) {
        StatusOr<ObjectRecord> parsed = ParseObjectRecord(object->value);
        if (parsed.ok()) record = *parsed;
        if (!parsed.ok()) Malformed(*object, id, parsed.status());
        objects.Next();
      }
      Status status = co_await WalkExtents(&extents, id, record);
      if (!status.ok()) co_return status;
    }
  }

  StatusOr<std::optional<ObjectId>> NextExtentId(Cursor* extents) {
    while (true) {
      ASSIGN_OR_RETURN(const KvEntry* entry, extents->Peek());
      if (entry == nullptr) return std::optional<ObjectId>();
      StatusOr<ExtentPlace> place = ParseExtentKey(entry->key);
      if (place.ok()) return std::optional<ObjectId>(place->object);
      Malformed(*entry, {}, place.status());
      extents->Next();
    }
  }

  Task<Status> WalkExtents(Cursor* extents, ObjectId id, std::optional<ObjectRecord> record) {
    Tally tally;
    while (true) {
      CO_ASSIGN_OR_RETURN(std::optional<ObjectId> next, NextExtentId(extents));
      if (next != id) break;
      CO_ASSIGN_OR_RETURN(const KvEntry* peeked, extents->Peek());
      KvEntry entry = *peeked;
      extents->Next();
      Chunk chunk;
      Status parsed = ParseChunk(entry.value, &chunk);
      if (!parsed.ok()) {
        Malformed(entry, id, parsed);
        continue;
      }
      uint64_t first = ParseExtentKey(entry.key)->chunk * kChunkBlocks;
      bool changed = DropBeyondEnd(id, record, first, &chunk);
      MarkChunk(id, first, chunk);
      if (changed && options_.repair) PutChunk(entry.key, chunk);
      Count(chunk, first, &tally);
      if (options_.verify_data) co_await VerifyChunk(id, record, first, chunk);
      if (options_.on_progress) options_.on_progress(++records_);
      if (batch_.ops().size() >= kBatchOps) CO_RETURN_IF_ERROR(co_await Flush());
    }
    CheckAccounts(id, std::move(record), tally);
    co_return co_await Flush();
  }

  static void Count(const Chunk& chunk, uint64_t first, Tally* tally) {
    tally->blocks += chunk.count();
    tally->unwritten += static_cast<uint64_t>(std::popcount(chunk.unwritten));
    uint64_t written = chunk.mapped & ~chunk.unwritten;
    if (written != 0) tally->end = first + 64 - static_cast<uint64_t>(std::countl_zero(written));
  }

  void CheckAccounts(const ObjectId& id, std::optional<ObjectRecord> record, const Tally& tally) {
    if (!record && tally.blocks == 0) return;  // its records were malformed, and are gone or reported
    if (!record) {
      Problem(CheckProblem::Kind::kOrphanExtent, id,
              absl::StrCat("object ", id.ToString(), " has ", tally.blocks, " blocks but no record"),
              options_.repair);
      record = ObjectRecord{1, tally.end * kBlockSize, tally.blocks, tally.unwritten, {}, 0};
      if (options_.repair) batch_.Put(ObjectKey(id), Encode(*record));
    }
    if (record->blocks != tally.blocks || record->unwritten != tally.unwritten) {
      Problem(CheckProblem::Kind::kAccounts, id,
              absl::StrCat("object ", id.ToString(), " counts ", record->blocks, " blocks (",
                           record->unwritten, " unwritten), has ", tally.blocks, " (", tally.unwritten, ")"),
              options_.repair);
      record->blocks = tally.blocks;
      record->unwritten = tally.unwritten;
      if (options_.repair) batch_.Put(ObjectKey(id), Encode(*record));
    }
    ++report_.objects;
    report_.blocks += tally.blocks;
    if (options_.on_object) options_.on_object({id, record->parent, record->size, record->blocks});
  }

  // --- one extent record ---

  void Malformed(const KvEntry& entry, const ObjectId& id, const Status& why) {
    std::string text = absl::StrCat("object ", id.ToString(), ": ", why.message());
    if (options_.repair) text += "; the record was removed, what it described is lost";
    Problem(CheckProblem::Kind::kMalformed, id, std::move(text), options_.repair);
    if (options_.repair) batch_.Erase(entry.key);
  }

  bool DropBeyondEnd(const ObjectId& id, const std::optional<ObjectRecord>& record, uint64_t first,
                     Chunk* chunk) {
    if (!record) return false;
    bool changed = false;
    uint64_t end = (record->size + kBlockSize - 1) / kBlockSize;
    for (uint32_t i = 0; i < kChunkBlocks; ++i) {
      if (!chunk->is_written(i) || first + i < end) continue;
      Problem(CheckProblem::Kind::kBeyondEnd, id,
              absl::StrCat("object ", id.ToString(), " has data in block ", first + i, ", its size is ",
                           record->size),
              options_.repair);
      if (options_.repair) chunk->Unmap(i);
      changed = true;
    }
    return changed;
  }

  void MarkChunk(const ObjectId& id, uint64_t first, const Chunk& chunk) {
    for (uint32_t i = 0; i < kChunkBlocks; ++i) {
      if (!chunk.is_mapped(i)) continue;
      uint64_t block = chunk.physical[i];
      std::string place =
          absl::StrCat("object ", id.ToString(), " block ", first + i, " (device block ", block, ")");
      if (block >= devices_.blocks->block_count()) {
        Problem(CheckProblem::Kind::kOutside, id,
                absl::StrCat(place, " lies beyond the device's ", devices_.blocks->block_count(), " blocks"));
        continue;
      }
      uint64_t bit = uint64_t{1} << (block % 64);
      if ((used_[block / 64] & bit) != 0) {
        size_t problem = Problem(CheckProblem::Kind::kOverlap, id, place + " is used by another place, too");
        overlaps_.push_back({id, first + i, problem});
      }
      used_[block / 64] |= bit;
    }
  }

  Task<void> VerifyChunk(ObjectId id, std::optional<ObjectRecord> record, uint64_t first, Chunk chunk) {
    for (uint32_t i = 0; i < kChunkBlocks;) {
      if (!chunk.is_written(i) || chunk.physical[i] >= devices_.blocks->block_count()) {
        ++i;
        continue;
      }
      uint32_t end = i + 1;
      while (end < kChunkBlocks && chunk.is_written(end) &&
             chunk.physical[end] == chunk.physical[end - 1] + 1 &&
             chunk.physical[end] < devices_.blocks->block_count()) {
        ++end;
      }
      std::span<std::byte> run(buffer_.get(), (end - i) * kBlockSize);
      std::vector<std::span<std::byte>> buffers(1, run);
      Status read = co_await devices_.blocks->Read(chunk.physical[i], buffers);
      std::string file = record ? record->parent.ToString() : "?";
      if (!read.ok()) {
        Problem(CheckProblem::Kind::kUnreadable, id,
                absl::StrCat("file ", file, " object ", id.ToString(), " blocks ", first + i, "..",
                             first + end - 1, " cannot be read: ", read.message()));
      } else {
        std::array<uint32_t, kChunkBlocks> crc;
        Crc32cBlocks(0, run, crc.data());
        for (uint32_t k = i; k < end; ++k) {
          ++report_.verified_blocks;
          if (crc[k - i] == chunk.crc[k]) continue;
          Problem(CheckProblem::Kind::kChecksum, id,
                  absl::StrFormat(
                      "file %s object %s block %d (device block %d): checksum is %08x, should be %08x", file,
                      id.ToString(), first + k, chunk.physical[k], crc[k - i], chunk.crc[k]));
        }
      }
      i = end;
    }
  }

  // --- repair ---

  void PutChunk(const std::string& key, const Chunk& chunk) {
    if (chunk.mapped == 0) return batch_.Erase(key);
    batch_.Put(key, EncodeChunk(chunk));
  }

  Task<Status> Flush() {
    if (batch_.empty()) co_return OkStatus();
    KvBatch batch = std::exchange(batch_, {});
    co_return co_await devices_.store->Commit(std::move(batch));
  }

  std::optional<uint64_t> FreeBlock() {
    for (; free_hint_ < devices_.blocks->block_count(); ++free_hint_) {
      if ((used_[free_hint_ / 64] >> (free_hint_ % 64) & 1) != 0) continue;
      used_[free_hint_ / 64] |= uint64_t{1} << (free_hint_ % 64);
      return free_hint_;
    }
    return std::nullopt;
  }

  // The second place gets a copy in a block of its own. Its checksum tells whose data it is when it is read.
  Task<Status> SeparateOverlaps() {
    for (const Overlap& overlap : overlaps_) {
      if (overlap.problem >= report_.problems.size()) break;  // as many as are reported
      std::optional<uint64_t> free = FreeBlock();
      if (!free) co_return ErrnoError(ENOSPC, "no free block to separate what overlaps");
      uint64_t index = overlap.block / kChunkBlocks;
      auto i = static_cast<uint32_t>(overlap.block % kChunkBlocks);
      Chunk chunk;
      CO_RETURN_IF_ERROR(LoadChunk(devices_.store, overlap.object, index, &chunk));
      std::span<std::byte> block(buffer_.get(), kBlockSize);
      std::vector<std::span<std::byte>> in(1, block);
      Status status = co_await devices_.blocks->Read(chunk.physical[i], in);
      if (!status.ok()) co_return status;
      std::vector<std::span<const std::byte>> out(1, block);
      status = co_await devices_.blocks->Write(*free, out);
      if (status.ok()) status = co_await devices_.blocks->Flush();
      if (!status.ok()) co_return status;
      chunk.physical[i] = *free;
      PutChunk(ExtentKey(overlap.object, index), chunk);
      CO_RETURN_IF_ERROR(co_await Flush());
      report_.problems[overlap.problem].repaired = true;
    }
    co_return OkStatus();
  }

  const OstDevices devices_;
  CheckOptions& options_;
  CheckReport report_;
  std::vector<uint64_t> used_;
  std::vector<Overlap> overlaps_;
  AlignedBuffer buffer_;
  KvBatch batch_;
  uint64_t records_ = 0;
  uint64_t free_hint_ = 0;
};

}  // namespace

Task<StatusOr<CheckReport>> CheckOst(OstDevices devices, CheckOptions options) {
  Checker checker(std::move(devices), &options);
  co_return co_await checker.Run();
}

}  // namespace nacre::ost
