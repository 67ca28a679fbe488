#include "server/object/journal.h"

#include <algorithm>
#include <cerrno>

#include "server/object/retirement.h"

namespace nacre::ost {
namespace {

constexpr size_t kEraseAtOnce = 4096;
// Blocks that are forgotten at once, some 100 us; and by one sync: others wait for that.
constexpr uint64_t kForgetTogether = 1024, kMostForgotten = 256 << 10;

void ApplyEdit(const ExtentEdit& edit, uint64_t chunk_index, uint64_t* changed, Chunk* chunk) {
  uint64_t base = chunk_index * kChunkBlocks;
  uint64_t from = std::max(edit.first, base);
  uint64_t to = std::min(edit.first + edit.count, base + kChunkBlocks);
  for (uint64_t block = from; block < to; ++block) {
    auto i = static_cast<uint32_t>(block - base);
    uint64_t at = block - edit.first;
    *changed |= uint64_t{1} << i;
    if (edit.physical == nullptr) {
      chunk->Unmap(i);
    } else if (edit.crc == nullptr) {
      chunk->MapUnwritten(i, edit.physical[at]);
    } else {
      chunk->MapWritten(i, edit.physical[at], edit.crc[at]);
    }
  }
}

void CollectFreed(const Chunk& before, const Chunk& after, uint64_t changed, std::vector<BlockRun>* freed) {
  for (uint32_t i = 0; i < kChunkBlocks; ++i) {
    if ((changed >> i & 1) == 0 || !before.is_mapped(i)) continue;
    if (after.is_mapped(i) && after.physical[i] == before.physical[i]) continue;
    AppendBlock(freed, before.physical[i]);
  }
}

// Between the last question whether a change may be made and the end of its commit.
class Committing {
 public:
  static StatusOr<Committing> Begin(Originator* by) {
    if (by != nullptr) RETURN_IF_ERROR(by->BeginCommit());
    return Committing(by);
  }
  Committing(Committing&& other) noexcept : by_(std::exchange(other.by_, nullptr)) {}
  Committing& operator=(Committing&&) = delete;
  ~Committing() {
    if (by_ != nullptr) by_->EndCommit();
  }

 private:
  explicit Committing(Originator* by) : by_(by) {}
  Originator* by_;
};

// Adds the growth record of a client's change that makes the object longer, unless it stands there already;
// that of an object that goes, goes with it. Returns whose record stands in the store behind this change.
SessionId NextGrower(ObjectState& object, const ObjectChange& change,
                     const std::optional<ObjectRecord>& before, const ObjectRecord& after, KvBatch* batch) {
  const SessionId known = object.Grower();
  if (change.destroy) {
    if (known != 0) batch->Erase(GrowthKey(known, object.id));
    return 0;
  }
  const SessionId by = change.by == nullptr ? 0 : change.by->session();
  const bool grows = after.size > (before ? before->size : 0);
  if (by == 0 || by == known || !grows) return known;
  batch->Put(GrowthKey(by, object.id), "");
  return by;
}

Answering* AnsweringOf(const ObjectChange& change) {
  return change.by == nullptr ? nullptr : change.by->answering();
}

// Adds sessions and how many of their slots are to be emptied.
void AddSlots(const absl::flat_hash_map<SessionId, uint32_t>& slots,
              absl::flat_hash_map<SessionId, uint32_t>* all) {
  for (const auto& [session, count] : slots) {
    uint32_t& known = (*all)[session];
    known = std::max(known, count);
  }
}

// Of a change that is handed on: ALREADY_EXISTS if it has been made before.
Status CheckVersion(const ObjectId& id, const std::optional<ObjectRecord>& record, const Applied& applied) {
  if (!applied.before) return OkStatus();
  const ObjectVersion has = VersionOf(record);
  if (has == *applied.before) return OkStatus();
  if (has == applied.after) return absl::AlreadyExistsError("");
  return ErrnoError(EBADMSG,
                    absl::StrFormat("object %s has version %d.%d here, not %d.%d", id.ToString(), has.epoch,
                                    has.changes, applied.before->epoch, applied.before->changes));
}

uint64_t CountBlocks(const std::vector<BlockRun>& runs) {
  uint64_t count = 0;
  for (const BlockRun& run : runs) count += run.count;
  return count;
}

}  // namespace

StatusOr<std::vector<Journal::Edited>> Journal::ApplyEdits(const ObjectId& id,
                                                           const std::vector<ExtentEdit>& edits) {
  std::vector<Edited> chunks;
  for (const ExtentEdit& edit : edits) {
    uint64_t last = (edit.first + edit.count - 1) / kChunkBlocks;
    for (uint64_t index = edit.first / kChunkBlocks; index <= last; ++index) {
      if (chunks.empty() || chunks.back().index != index) {
        Edited& fresh = chunks.emplace_back();
        fresh.index = index;
        ASSIGN_OR_RETURN(const ChunkPtr chunk, chunks_->Load(id, index));
        fresh.before = fresh.after = *chunk;
      }
      ApplyEdit(edit, index, &chunks.back().changed, &chunks.back().after);
    }
  }
  return chunks;
}

StatusOr<Journal::Prepared> Journal::Prepare(ObjectState* object, const ObjectChange& change) {
  ASSIGN_OR_RETURN(std::vector<Edited> chunks, ApplyEdits(object->id, change.edits));
  Prepared prepared;
  UndoRecord& undo = prepared.undo;
  undo.object = object->id;
  undo.before = object->Record();
  prepared.result.made = !undo.before;
  ObjectRecord record = undo.before.value_or(ObjectRecord{.parent = change.parent});
  if (change.applied != nullptr) {
    RETURN_IF_ERROR(CheckVersion(object->id, undo.before, *change.applied));
    record.group_generation = change.applied->after.epoch;
    record.version = change.applied->after.changes;
    record.size = change.applied->size.value_or(record.size);
  } else {
    ++record.version;
    if (replicator_ != nullptr) record.group_generation = replicator_->epoch();
    if (change.grow_to) record.size = std::max(record.size, *change.grow_to);
    if (change.cut_to) record.size = std::min(record.size, *change.cut_to);
  }
  if (!record.parent) record.parent = change.parent;

  KvBatch& batch = prepared.batch;
  int64_t& delta = prepared.result.delta;
  undo.chunks.reserve(chunks.size());
  for (Edited& chunk : chunks) {
    delta += static_cast<int64_t>(chunk.after.count()) - static_cast<int64_t>(chunk.before.count());
    record.unwritten += static_cast<uint64_t>(std::popcount(chunk.after.unwritten));
    record.unwritten -= static_cast<uint64_t>(std::popcount(chunk.before.unwritten));
    CollectFreed(chunk.before, chunk.after, chunk.changed, &prepared.freed);
    std::string key = ExtentKey(object->id, chunk.index);
    if (chunk.after.mapped != 0) {
      batch.Put(std::move(key), EncodeChunk(chunk.after));
    } else if (chunk.before.mapped != 0) {
      batch.Erase(std::move(key));
    }
    undo.chunks.push_back({chunk.index, chunk.changed, chunk.before, chunk.after});
  }
  record.blocks += static_cast<uint64_t>(delta);
  if (change.destroy) {
    batch.Erase(ObjectKey(object->id));
  } else {
    batch.Put(ObjectKey(object->id), Encode(record));
    prepared.record = record;
  }
  prepared.grower = NextGrower(*object, change, undo.before, record, &batch);
  if (Answering* answering = AnsweringOf(change); answering != nullptr && change.ends_request) {
    undo.answer = answering->answer;
    if (change.applied == nullptr) undo.answer->record.delta += delta;
  }
  if (change.frees_space) batch.UseReserve();
  return prepared;
}

AsyncMutex& Journal::OrderOf(const ObjectId& id) {
  return orders_[(id.sequence + id.stripe * uint64_t{7}) % orders_.size()];
}

uint64_t Journal::Begin() {
  std::lock_guard lock(mutex_);
  unsynced_.push_back({++begun_, {}});
  under_way_.insert(begun_);
  return begun_;
}

void Journal::End(uint64_t sequence, std::vector<BlockRun> freed, std::optional<SlotAnswer> answer) {
  std::lock_guard lock(mutex_);
  ++ended_;
  under_way_.erase(sequence);
  waiting_blocks_ += CountBlocks(freed);
  Retiring& retiring = unsynced_[sequence - unsynced_.front().sequence];
  retiring.freed = std::move(freed);
  retiring.answer = answer;
}

Task<StatusOr<Journal::Committed>> Journal::Commit(ObjectState* object, const ObjectChange& change) {
  AsyncMutex::Guard guard = co_await OrderOf(object->id).Lock();
  if (closed()) co_return ErrnoError(ESHUTDOWN, "the server is stopping");
  CO_ASSIGN_OR_RETURN(Committing committing, Committing::Begin(change.by));
  StatusOr<Prepared> preparing = Prepare(object, change);
  if (absl::IsAlreadyExists(preparing.status()) && replicator_ != nullptr)
    CO_RETURN_IF_ERROR(co_await HandOnMade(change, object));
  CO_ASSIGN_OR_RETURN(Prepared prepared, std::move(preparing));
  if (replicator_ != nullptr) CO_RETURN_IF_ERROR(co_await HandOn(*object, change, prepared));
  CO_RETURN_IF_ERROR(co_await CommitPrepared(&prepared));
  object->SetRecord(prepared.record);
  object->SetGrower(prepared.grower);
  if (Answering* answering = AnsweringOf(change); answering != nullptr) {
    if (change.applied == nullptr) answering->answer.record.delta += prepared.result.delta;
    answering->stored = change.ends_request;
  }
  co_return prepared.result;
}

Task<Status> Journal::HandOn(const ObjectState& object, const ObjectChange& change,
                             const Prepared& prepared) {
  OutgoingChange outgoing;
  outgoing.object = &object.id;
  outgoing.change = &change;
  outgoing.by = change.by;
  outgoing.before = VersionOf(prepared.undo.before);
  outgoing.after = prepared.record;
  if (prepared.undo.answer) outgoing.answer = prepared.undo.answer->record;
  co_return co_await replicator_->HandOn(outgoing);
}

// This member has it already, from a head that ended before it had it too. One that has been filled since,
// behind this one, does not.
Task<Status> Journal::HandOnMade(const ObjectChange& change, ObjectState* object) {
  OutgoingChange outgoing;
  outgoing.object = &object->id;
  outgoing.change = &change;
  outgoing.by = change.by;
  outgoing.before = *change.applied->before;
  outgoing.after = object->Record();
  if (Answering* answering = AnsweringOf(change); answering != nullptr && change.ends_request)
    outgoing.answer = answering->answer.record;
  co_return co_await replicator_->HandOn(outgoing);
}

Task<Status> Journal::CommitPrepared(Prepared* prepared) {
  const uint64_t sequence = Begin();
  prepared->batch.Put(UndoKey(sequence), Encode(prepared->undo));
  const UndoRecord& undo = prepared->undo;
  for (const UndoChunk& chunk : undo.chunks) chunks_->BeginChange(undo.object, chunk.chunk);
  Status status = co_await store_->Commit(std::move(prepared->batch));
  for (const UndoChunk& chunk : undo.chunks)
    chunks_->EndChange(undo.object, chunk.chunk, status.ok() ? &chunk.after : nullptr);
  if (!status.ok()) {
    prepared->freed.clear();  // they are in use as before
    prepared->undo.answer.reset();
    if (replicator_ != nullptr) replicator_->NoteFailure(status);
  }
  End(sequence, std::move(prepared->freed), prepared->undo.answer);
  co_return status;
}

Task<std::vector<AsyncMutex::Guard>> Journal::HoldAllChanges() {
  std::vector<AsyncMutex::Guard> guards;
  for (AsyncMutex& order : orders_) guards.push_back(co_await order.Lock());
  co_return guards;
}

Task<void> Journal::AwaitCommits() {
  for (AsyncMutex& order : orders_) {
    AsyncMutex::Guard guard = co_await order.Lock();
  }
}

Task<Status> Journal::Record(Originator* by) {
  AsyncMutex::Guard guard;  // for AwaitCommits
  if (replicator_ != nullptr) guard = co_await orders_.front().Lock();
  if (closed()) co_return ErrnoError(ESHUTDOWN, "the server is stopping");
  CO_ASSIGN_OR_RETURN(Committing committing, Committing::Begin(by));
  Prepared prepared;
  prepared.undo.answer = by->answering()->answer;
  prepared.batch.UseReserve();
  if (replicator_ != nullptr) {
    OutgoingChange outgoing;
    outgoing.by = by;
    outgoing.answer = prepared.undo.answer->record;
    CO_RETURN_IF_ERROR(co_await replicator_->HandOn(outgoing));
  }
  CO_RETURN_IF_ERROR(co_await CommitPrepared(&prepared));
  by->answering()->stored = true;
  co_return OkStatus();
}

void Journal::ForgetAnswers(const absl::flat_hash_map<SessionId, uint32_t>& slots) {
  std::lock_guard lock(mutex_);
  for (Retiring& retiring : unsynced_) {
    if (retiring.answer && slots.contains(retiring.answer->slot.session)) retiring.answer.reset();
  }
  AddSlots(slots, &forgotten_);
}

Task<Status> Journal::Settle(ObjectState* object, SessionId session, uint64_t version) {
  AsyncMutex::Guard guard = co_await OrderOf(object->id).Lock();
  if (closed()) co_return ErrnoError(ESHUTDOWN, "the server is stopping");
  const std::optional<ObjectRecord> record = object->Record();
  if (record && record->version != version) co_return OkStatus();
  KvBatch batch;
  batch.UseReserve();
  batch.Erase(GrowthKey(session, object->id));
  CO_RETURN_IF_ERROR(co_await store_->Commit(std::move(batch)));
  if (object->Grower() == session) object->SetGrower(0);
  co_return OkStatus();
}

Task<Status> Journal::Sync() {
  uint64_t ended;
  {
    std::lock_guard lock(mutex_);
    ended = ended_;
  }
  AsyncMutex::Guard guard = co_await sync_mutex_.Lock();
  CO_RETURN_IF_ERROR(flush_failure());
  {
    std::lock_guard lock(mutex_);
    if (synced_ >= ended && erased_.empty() && forgotten_.empty()) co_return OkStatus();
  }
  co_return co_await SyncLocked();
}

Task<StatusOr<bool>> Journal::Reclaim() {
  AsyncMutex::Guard guard = co_await sync_mutex_.Lock();
  CO_RETURN_IF_ERROR(flush_failure());
  if (waiting_blocks() == 0) co_return false;
  Status status = co_await SyncLocked();
  if (!status.ok()) co_return status;
  co_return true;
}

Task<Status> Journal::SyncLocked() {
  uint64_t ended, upto;
  std::vector<BlockRun> freeing;
  {
    std::lock_guard lock(mutex_);
    ended = ended_;
    upto = under_way_.empty() ? begun_ : *under_way_.begin() - 1;
    freeing = std::move(erased_);
    erased_.clear();
  }
  Status status = co_await FlushBoth(ended > synced_);
  if (status.ok() && closed()) status = ErrnoError(ESHUTDOWN, "the server is stopping");
  if (!status.ok()) {
    std::lock_guard lock(mutex_);
    erased_.insert(erased_.end(), freeing.begin(), freeing.end());
    co_return status;
  }
  synced_ = ended;
  co_await Free(std::move(freeing));
  // The sync has succeeded; if the erasure fails (a full disk), the next sync tries it again.
  Status erased = co_await EraseUndo(upto);
  erased.IgnoreError();
  co_return OkStatus();
}

Task<void> Journal::Free(std::vector<BlockRun> runs) {
  if (forget_ != nullptr) co_await Forget(runs);
  space_->allocator().Free(runs);
  std::lock_guard lock(mutex_);
  waiting_blocks_ -= CountBlocks(runs);
}

// Others want the thread meanwhile.
Task<void> Journal::Forget(const std::vector<BlockRun>& runs) {
  uint64_t left = kMostForgotten, together = 0;
  for (const BlockRun& run : runs) {
    const uint64_t end = run.first + std::min(run.count, left);
    left -= end - run.first;
    for (uint64_t first = run.first; first < end;) {
      const uint64_t count = std::min(kForgetTogether, end - first);
      forget_({first, count});
      first += count;
      if ((together += count) < kForgetTogether) continue;
      together = 0;
      co_await Yield();
    }
  }
}

// Data and log side by side, which disks and filesystems make one wait of. In what order they arrive does not
// matter as long as the undo records are there: recovery takes back what has no data.
Task<Status> Journal::FlushBoth(bool data) {
  if (!data) co_return co_await store_->Sync();
  std::vector<Task<Status>> flushes;
  flushes.push_back(FlushBlocks());
  flushes.push_back(store_->Sync());
  std::vector<Status> results = co_await WhenAll(std::move(flushes));
  results[0].Update(results[1]);
  co_return results[0];
}

Task<Status> Journal::FlushBlocks() {
  Status flushed = co_await blocks_->Flush();
  if (flushed.ok() || closed()) co_return flushed;
  std::lock_guard lock(mutex_);
  flush_failure_.Update(flushed);
  co_return flushed;
}

// Not beside a sync: who of two that flush at once is told of a failure is chance.
Task<Status> Journal::FlushData() {
  AsyncMutex::Guard guard = co_await sync_mutex_.Lock();
  CO_RETURN_IF_ERROR(flush_failure());
  co_return co_await FlushBlocks();
}

Status Journal::flush_failure() const {
  std::lock_guard lock(mutex_);
  return flush_failure_;
}

Task<Status> Journal::EraseUndo(uint64_t upto) {
  while (true) {
    Retirement retirement;
    absl::flat_hash_map<SessionId, uint32_t> forgetting;
    size_t count = 0;
    {
      std::lock_guard lock(mutex_);
      forgetting.swap(forgotten_);
      for (const auto& [session, slots] : forgetting) retirement.Forget(session, slots);
      for (; count < unsynced_.size() && count < kEraseAtOnce && unsynced_[count].sequence <= upto; ++count)
        retirement.Add(unsynced_[count].sequence, unsynced_[count].answer);
    }
    if (retirement.empty()) co_return OkStatus();
    Status status = co_await store_->Commit(std::move(retirement).Take());
    std::lock_guard lock(mutex_);
    if (!status.ok()) {
      AddSlots(forgetting, &forgotten_);
      co_return status;
    }
    for (; count > 0; --count) {
      std::vector<BlockRun>& freed = unsynced_.front().freed;
      erased_.insert(erased_.end(), freed.begin(), freed.end());
      unsynced_.pop_front();
    }
  }
}

uint64_t Journal::waiting_blocks() const {
  std::lock_guard lock(mutex_);
  return waiting_blocks_;
}

size_t Journal::waiting_records() const {
  std::lock_guard lock(mutex_);
  return unsynced_.size();
}

}  // namespace nacre::ost
