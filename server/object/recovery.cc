// Treats the undo records that the last process has left, when an OST starts.
#include <algorithm>
#include <cerrno>
#include <memory>

#include "common/crc32c.h"
#include "common/log.h"
#include "server/kv/kv_pages.h"
#include "server/object/aligned_buffer.h"
#include "server/object/journal.h"
#include "server/object/retirement.h"

namespace nacre::ost {
namespace {

constexpr size_t kUndoAtOnce = 256;

}  // namespace

Task<StatusOr<Journal::Recovered>> Journal::Recover(bool may_have_lost) {
  Recovered result;
  StatusOr<uint64_t> first_bad = ~uint64_t{0};
  if (may_have_lost) first_bad = co_await FirstBad(&result.verified);
  if (!first_bad.ok()) co_return first_bad.status();
  std::string from = UndoKey(*first_bad), end = PrefixEnd("U");
  while (*first_bad != ~uint64_t{0}) {
    StatusOr<KvEntry> newest = store_->Last(from, end);
    if (absl::IsNotFound(newest.status())) break;
    if (!newest.ok()) co_return newest.status();
    CO_ASSIGN_OR_RETURN(uint64_t sequence, ParseUndoKey(newest->key));
    CO_ASSIGN_OR_RETURN(UndoRecord undo, ParseUndoRecord(newest->value));
    CO_RETURN_IF_ERROR(co_await RollBack(sequence, undo));
    ++result.rolled_back;
  }
  CO_RETURN_IF_ERROR(co_await DropUndoRecords());
  co_return result;
}

// The sequence of the oldest batch whose data did not arrive; the largest number if all did.
Task<StatusOr<uint64_t>> Journal::FirstBad(uint64_t* verified) {
  for (KvPages<KvStore> pages(*store_, "U", kUndoAtOnce); pages.more();) {
    CO_ASSIGN_OR_RETURN(std::vector<KvEntry> entries, pages.Next());
    for (const KvEntry& entry : entries) {
      CO_ASSIGN_OR_RETURN(uint64_t sequence, ParseUndoKey(entry.key));
      StatusOr<UndoRecord> undo = ParseUndoRecord(entry.value);
      if (!undo.ok()) co_return undo.status();
      StatusOr<bool> arrived = co_await Arrived(*undo);
      if (!arrived.ok()) co_return arrived.status();
      if (!*arrived) co_return sequence;
      ++*verified;
    }
  }
  co_return ~uint64_t{0};
}

// Whether every block that the batch has written matches its checksum.
Task<StatusOr<bool>> Journal::Arrived(const UndoRecord& undo) {
  AlignedBuffer buffer = MakeAligned(kChunkBlocks * kBlockSize);
  for (const UndoChunk& chunk : undo.chunks) {
    const Chunk& after = chunk.after;
    for (uint32_t i = 0; i < kChunkBlocks;) {
      if (!after.is_written(i)) {
        ++i;
        continue;
      }
      uint32_t end = i + 1;
      while (end < kChunkBlocks && after.is_written(end) &&
             after.physical[end] == after.physical[end - 1] + 1)
        ++end;
      if (after.physical[i] + (end - i) > blocks_->block_count()) {
        co_return absl::DataLossError(absl::StrCat("undo record of object ", undo.object.ToString(),
                                                   " names block ", after.physical[end - 1],
                                                   ", the device has ", blocks_->block_count()));
      }
      std::span<std::byte> run(buffer.get(), (end - i) * kBlockSize);
      std::vector<std::span<std::byte>> buffers(1, run);
      Status read = co_await blocks_->Read(after.physical[i], buffers);
      if (!read.ok()) co_return read;
      std::array<uint32_t, kChunkBlocks> crc;
      Crc32cBlocks(0, run, crc.data());
      for (uint32_t k = i; k < end; ++k) {
        if (crc[k - i] != after.crc[k]) co_return false;
      }
      i = end;
    }
  }
  co_return true;
}

Task<Status> Journal::RollBack(uint64_t sequence, const UndoRecord& undo) {
  KvBatch batch;
  batch.UseReserve();
  for (const UndoChunk& changed : undo.chunks) {
    Chunk chunk;
    CO_RETURN_IF_ERROR(LoadChunk(store_, undo.object, changed.chunk, &chunk));
    bool existed = chunk.mapped != 0;
    for (uint32_t i = 0; i < kChunkBlocks; ++i) {
      if ((changed.changed >> i & 1) == 0) continue;
      if (!changed.before.is_mapped(i)) {
        chunk.Unmap(i);
      } else if (changed.before.is_unwritten(i)) {
        chunk.MapUnwritten(i, changed.before.physical[i]);
      } else {
        chunk.MapWritten(i, changed.before.physical[i], changed.before.crc[i]);
      }
    }
    std::string key = ExtentKey(undo.object, changed.chunk);
    if (chunk.mapped != 0) {
      batch.Put(std::move(key), EncodeChunk(chunk));
    } else if (existed) {
      batch.Erase(std::move(key));
    }
  }
  if (undo.before) {
    batch.Put(ObjectKey(undo.object), Encode(*undo.before));
  } else if (undo.changes_object()) {
    batch.Erase(ObjectKey(undo.object));
  }
  batch.Erase(UndoKey(sequence));
  for (const UndoChunk& changed : undo.chunks) chunks_->BeginChange(undo.object, changed.chunk);
  Status status = co_await store_->Commit(std::move(batch));
  for (const UndoChunk& changed : undo.chunks) chunks_->EndChange(undo.object, changed.chunk, nullptr);
  co_return status;
}

// The data of the remaining records has arrived; it is made to last before anything that they name is used
// again. Their answers are kept.
Task<Status> Journal::DropUndoRecords() {
  Status status = co_await blocks_->Flush();
  if (status.ok()) status = co_await store_->Sync();
  if (!status.ok()) co_return status;
  for (KvPages<KvStore> pages(*store_, "U", kUndoAtOnce); pages.more();) {
    CO_ASSIGN_OR_RETURN(std::vector<KvEntry> entries, pages.Next());
    if (entries.empty()) break;
    Retirement retirement;
    for (const KvEntry& entry : entries) {
      CO_ASSIGN_OR_RETURN(uint64_t sequence, ParseUndoKey(entry.key));
      CO_ASSIGN_OR_RETURN(UndoRecord undo, ParseUndoRecord(entry.value));
      retirement.Add(sequence, undo.answer);
    }
    CO_RETURN_IF_ERROR(co_await store_->Commit(std::move(retirement).Take()));
  }
  co_return co_await store_->Sync();
}

}  // namespace nacre::ost
