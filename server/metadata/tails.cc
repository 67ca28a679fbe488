#include "server/metadata/tails.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "common/log.h"
#include "server/metadata/layout.h"
#include "server/metadata/left_objects.h"
#include "server/metadata/object_io.h"

namespace nacre::mds {
namespace {

constexpr uint64_t kMostBytes = 1 << 20;  // of a tail, before it is written
constexpr uint32_t kMostRecords = 4096;
constexpr Duration kLongest = std::chrono::seconds(2);
constexpr Duration kAgain = std::chrono::seconds(5);  // after an attempt that has failed
constexpr Duration kLookPeriod = std::chrono::seconds(1);
constexpr Duration kFirstRetry = std::chrono::milliseconds(100);
constexpr Duration kLongestRetry = std::chrono::seconds(5);
constexpr Duration kTellingRetry = std::chrono::seconds(3);  // comes after some seconds of attempts
constexpr uint64_t kFullBelow = 8 << 20;                     // bytes: an OST that has less left is full

// Bytes that follow each other.
struct Run {
  uint64_t offset = 0;
  std::string data;
};

// The tail that SettleTail works on, and the layout of its file.
struct Found {
  Layout layout;
  std::vector<std::string> keys;
  std::vector<Run> runs;
};

std::string TailPrefix(const Fid& file) { return FidKey(Table::kTail, file); }

StatusOr<uint64_t> OffsetOf(std::string_view key) {
  ByteReader in(key.substr(1));
  (void)in.ReadFid();
  const uint64_t offset = in.Big<uint64_t>();
  if (in.ok() && in.empty()) return offset;
  return absl::DataLossError(absl::StrFormat("damaged key of appended bytes: %d bytes", key.size()));
}

StatusOr<Found> Find(Mds& mds, const Inode& inode) {
  Found found;
  found.layout = inode.layout;
  RETURN_IF_ERROR(ForEachEntry(*mds.tables, TailPrefix(inode.fid), [&](KvEntry& entry) -> Status {
    ASSIGN_OR_RETURN(const uint64_t offset, OffsetOf(entry.key));
    Run* last = found.runs.empty() ? nullptr : &found.runs.back();
    if (last != nullptr && last->offset + last->data.size() == offset)
      last->data.append(entry.value);
    else
      found.runs.push_back({offset, std::move(entry.value)});
    found.keys.push_back(std::move(entry.key));
    return OkStatus();
  }));
  return found;
}

Task<Status> WriteRuns(MdsPtr mds, Fid file, const Found& found) {
  for (const Run& run : found.runs) {
    for (uint64_t at = 0; at < run.data.size();) {
      const LayoutPiece piece = PieceAt(found.layout, run.offset + at, run.data.size() - at);
      if (piece.length == 0)
        co_return absl::DataLossError(absl::StrCat(file.ToString(), " has a layout that ends early"));
      if (!cluster::IsGone(mds->osts.UseOf(piece.ost))) {
        std::string data = run.data.substr(at, piece.length);
        CO_RETURN_IF_ERROR((co_await WritePiece(mds, file, found.layout, piece, std::move(data))).status());
      }
      at += piece.length;
    }
  }
  co_return OkStatus();
}

// The records go. If the file has other objects by now, or none, what was written to these is dropped.
Task<Status> TakeRecords(MdsPtr mds, Fid file, Found found) {
  FidLocks::Guard guard = co_await LockOne(*mds, file);
  auto inode = mds->tables->GetInode(file);
  if (!inode.ok() && !absl::IsNotFound(inode.status())) co_return inode.status();
  const uint64_t sequence = found.layout.object_sequence;
  const bool left = !inode.ok() || (*inode)->inline_data || (*inode)->layout.object_sequence != sequence;
  const bool drop = left && !IsLeft(*mds, sequence);
  KvBatch batch;
  batch.UseReserve();
  for (std::string& key : found.keys) batch.Erase(std::move(key));
  if (drop) AddLeft(file, found.layout, &batch);
  CO_RETURN_IF_ERROR(co_await mds->tables->CommitBatch(std::move(batch)));
  CO_RETURN_IF_ERROR(co_await mds->tables->Sync());
  if (drop) Spawn(mds->env.executor, DestroyLeft(mds, file, std::move(found.layout)));
  co_return OkStatus();
}

bool HasObjects(const Inode& inode) { return S_ISREG(inode.mode) && !inode.inline_data; }

Task<void> SettleInBackground(MdsPtr mds, Fid file) {
  auto data = mds->data_locks.TryLock(file);
  if (!data) co_return;  // a truncation, a move, or another attempt
  Status settled = co_await SettleTail(mds, file);
  if (settled.ok() || mds->closed || IsRetryable(settled)) co_return;
  std::string problem = absl::StrFormat("what was appended to %s cannot be written to its objects: %s",
                                        file.ToString(), settled.message());
  if (mds->NoteProblem(problem)) LogError("%s", problem);
}

}  // namespace

// --- which there are ---

bool Tails::Has(const Fid& file) const {
  std::lock_guard lock(mutex_);
  return tails_.contains(file);
}

bool Tails::IsFull(const Fid& file, uint64_t bytes) const {
  std::lock_guard lock(mutex_);
  auto it = tails_.find(file);
  if (it == tails_.end()) return false;
  return it->second.bytes + bytes > kMostBytes || it->second.records >= kMostRecords;
}

bool Tails::HasSince(const Fid& file, uint32_t generation) const {
  std::lock_guard lock(mutex_);
  auto it = tails_.find(file);
  return it != tails_.end() && it->second.generation == generation;
}

void Tails::Note(const Fid& file, uint32_t generation, uint64_t bytes, Duration now) {
  std::lock_guard lock(mutex_);
  auto [it, made] = tails_.try_emplace(file);
  Tail& tail = it->second;
  if (made) tail.due = now + kLongest;
  tail.generation = generation;
  tail.bytes += bytes;
  ++tail.records;
}

void Tails::Forget(const Fid& file) {
  std::lock_guard lock(mutex_);
  tails_.erase(file);
}

std::vector<Fid> Tails::TakeDue(Duration now) {
  std::lock_guard lock(mutex_);
  std::vector<Fid> due;
  for (auto& [file, tail] : tails_) {
    if (tail.due > now) continue;
    tail.due = now + kAgain;
    due.push_back(file);
  }
  std::sort(due.begin(), due.end());  // so that a simulation repeats itself
  return due;
}

// --- storing ---

bool MayStoreTail(const Mds& mds, const Inode& inode, uint64_t length) {
  for (uint64_t at = inode.size; at < inode.size + length;) {
    const LayoutPiece piece = PieceAt(inode.layout, at, inode.size + length - at);
    if (piece.length == 0 || mds.osts.RoomOf(piece.ost) < kFullBelow) return false;
    at += piece.length;
  }
  return true;
}

void AddTail(Mds& mds, Transaction* transaction, Inode* inode, std::string data) {
  transaction->Dirty(inode);
  const bool begins = !mds.tails.HasSince(inode->fid, inode->layout.generation);
  if (begins && !mds.options.plant_same_generation) RaiseGeneration(mds, &inode->layout);
  mds.tails.Note(inode->fid, inode->layout.generation, data.size(), mds.env.clock.Now());
  const uint64_t end = inode->size + data.size();
  const auto blocks = [](uint64_t size) { return (size + 4095) / 4096 * 8; };
  inode->blocks += blocks(end) - blocks(inode->size);  // as many as the objects will have
  transaction->batch().Put(TailKey(inode->fid, inode->size), std::move(data));
  inode->size = end;
}

Status DropTail(Mds& mds, const Fid& file, KvBatch* batch) {
  if (!mds.tails.Has(file)) return OkStatus();
  return ForEachEntry(*mds.tables, TailPrefix(file), [&](KvEntry& entry) -> Status {
    batch->Erase(std::move(entry.key));
    return OkStatus();
  });
}

// --- settling ---

Task<Status> SettleTail(MdsPtr mds, Fid file) {
  if (!mds->tails.Has(file)) co_return OkStatus();
  Found found;
  {
    FidLocks::Guard guard = co_await LockOne(*mds, file);
    auto inode = mds->tables->GetInode(file);
    if (!inode.ok() && !absl::IsNotFound(inode.status())) co_return inode.status();
    if (inode.ok() && HasObjects(**inode)) {
      CO_ASSIGN_OR_RETURN(found, Find(*mds, **inode));
    }
  }
  if (!found.keys.empty()) {
    CO_RETURN_IF_ERROR(co_await WriteRuns(mds, file, found));
    CO_RETURN_IF_ERROR(co_await TakeRecords(mds, file, std::move(found)));
  }
  mds->tails.Forget(file);
  co_return OkStatus();
}

Task<Status> SettleTailFor(MdsPtr mds, SessionPtr session, Fid file) {
  const Session::Wait for_osts(session);
  for (Duration pause = kFirstRetry;; pause = std::min(2 * pause, kLongestRetry)) {
    Status settled = co_await SettleTail(mds, file);
    if (settled.ok() || mds->closed) co_return settled;
    // Not at the first error: a disk may fail once, and who has an error believes that nothing is done.
    if (!IsRetryable(settled) && pause >= kTellingRetry) {
      co_return ErrnoError(EIO, absl::StrFormat("the end of %s lies in the MDT and cannot be written to its "
                                                "objects: %s",
                                                file.ToString(), settled.message()));
    }
    if (session->ended()) co_return ErrnoError(ESTALE, absl::StrFormat("session %d has ended", session->id));
    co_await mds->env.clock.Sleep(pause);
  }
}

Task<StatusOr<FidLocks::Guard>> LockSettled(MdsPtr mds, SessionPtr session, Fid file) {
  {
    FidLocks::Guard guard = co_await LockOne(*mds, file);
    if (!mds->tails.Has(file) || mds->options.plant_unsettled_tail) co_return guard;
  }
  std::vector<Fid> fids(1, file);
  FidLocks::Guard data = co_await mds->data_locks.Lock(std::move(fids));
  CO_RETURN_IF_ERROR(co_await SettleTailFor(mds, std::move(session), file));
  co_return co_await LockOne(*mds, file);  // appends wait for the data lock until then
}

// --- in the background ---

namespace {

// A record that a restart has found.
Task<Status> TakeUp(MdsPtr mds, const KvEntry& entry, KvBatch* batch) {
  ByteReader key(std::string_view(entry.key).substr(1));
  const Fid file = key.ReadFid();
  CO_RETURN_IF_ERROR(OffsetOf(entry.key).status());
  auto inode = mds->tables->GetInode(file);
  if (!inode.ok() && !absl::IsNotFound(inode.status())) co_return inode.status();
  if (inode.ok() && HasObjects(**inode))
    mds->tails.Note(file, 0, entry.value.size(), mds->env.clock.Now());
  else
    batch->Erase(entry.key);
  co_return OkStatus();
}

}  // namespace

Task<Status> ResumeTails(MdsPtr mds) {
  std::string what = "bytes appended to";
  SettleRecord resume = [mds](const KvEntry& entry, KvBatch* batch) { return TakeUp(mds, entry, batch); };
  co_return co_await SettleRecords(*mds->tables, Table::kTail, std::move(what), std::move(resume));
}

Task<void> SettleTails(MdsPtr mds) {
  while (!mds->closed) {
    co_await mds->env.clock.Sleep(kLookPeriod);
    if (mds->closed) co_return;
    for (const Fid& file : mds->tails.TakeDue(mds->env.clock.Now()))
      Spawn(mds->env.executor, SettleInBackground(mds, file));
  }
}

}  // namespace nacre::mds
