#include "server/metadata/truncate.h"

#include <sys/stat.h>

#include <cerrno>

#include "common/log.h"
#include "server/metadata/destroyer.h"
#include "server/metadata/object_io.h"

namespace nacre::mds {
namespace {

// What moving out knows of the file when it begins.
struct InlineFile {
  Layout layout;
  std::string data;
  uint64_t change = 0;
};

StatusOr<InlineFile> ReadInline(Mds& mds, const InodePtr& inode) {
  InlineFile file;
  file.layout = inode->layout;
  file.change = inode->change;
  proto::Layout unused;
  RETURN_IF_ERROR(FillLayout(mds, inode, &unused, &file.data));
  return file;
}

// Reserves an object sequence: until the move is committed its objects are in the destroy queue, where a
// crash leaves them.
Task<Status> HoldSequence(MdsPtr mds, const Layout& layout) {
  KvBatch batch;
  batch.Put(NumberKey(Table::kDestroy, layout.object_sequence), EncodeDestroy({StripeGroups(layout)}));
  co_return co_await mds->tables->CommitBatch(std::move(batch));
}

Task<Status> CommitMove(MdsPtr mds, Fid fid, const InlineFile& file, uint64_t blocks, bool* changed) {
  Transaction transaction(*mds->tables);
  CO_ASSIGN_OR_RETURN(Inode * inode, transaction.Load(fid));
  *changed = inode->change != file.change;
  if (*changed) co_return OkStatus();
  transaction.Dirty(inode);
  inode->inline_data = false;
  inode->blocks = blocks;
  inode->layout = file.layout;
  ++inode->layout.generation;
  transaction.batch().Erase(FidKey(Table::kBody, fid));
  transaction.batch().Erase(NumberKey(Table::kDestroy, file.layout.object_sequence));
  co_return co_await mds->tables->Commit(&transaction);
}

// One attempt; *done is false if the file changed meanwhile.
Task<Status> TryMoveOut(MdsPtr mds, Fid fid, bool* done) {
  CO_ASSIGN_OR_RETURN(uint64_t sequence, co_await mds->ids.NextObjectSequence());
  InlineFile file;
  {
    FidLocks::Guard guard = co_await LockOne(*mds, fid);
    CO_ASSIGN_OR_RETURN(InodePtr inode, mds->tables->GetInode(fid));
    *done = !inode->inline_data;
    if (*done) co_return OkStatus();
    CO_ASSIGN_OR_RETURN(file, ReadInline(*mds, inode));
    file.layout.object_sequence = sequence;
    if (file.data.empty()) {
      *done = true;
      bool changed = false;
      co_return co_await CommitMove(mds, fid, file, 0, &changed);
    }
    mds->destroyer.Hold(sequence);
    CO_RETURN_IF_ERROR(co_await HoldSequence(mds, file.layout));
  }
  auto blocks = co_await WriteFirstBytes(mds, fid, file.layout, file.data);
  FidLocks::Guard guard = co_await LockOne(*mds, fid);
  bool changed = true;
  Status status = blocks.status();
  if (status.ok()) status = co_await CommitMove(mds, fid, file, *blocks, &changed);
  mds->destroyer.Release(sequence);
  *done = !changed;
  co_return status;
}

Task<void> ResumeOne(MdsPtr mds, Fid fid, uint64_t size, [[maybe_unused]] FidLocks::Guard data) {
  auto blocks = co_await Cut(mds, fid, size);
  if (!blocks.ok()) {
    if (!mds->closed)
      LogError("truncating %s failed: %s", fid.ToString(), std::string(blocks.status().message()));
    co_return;
  }
  FidLocks::Guard guard = co_await LockOne(*mds, fid);
  Transaction transaction(*mds->tables);
  auto inode = transaction.Load(fid);
  if (!inode.ok()) co_return;
  FinishCut(&transaction, *inode, size, *blocks);
  TouchModified(*inode, mds->env.clock.Wall());
  Status status = co_await mds->tables->Commit(&transaction);
  if (!status.ok() && !mds->closed)
    LogError("truncating %s failed: %s", fid.ToString(), std::string(status.message()));
}

}  // namespace

Task<FidLocks::Guard> LockQuiet(Mds& mds, Fid fid) {
  while (true) {
    FidLocks::Guard guard = co_await LockOne(mds, fid);
    if (!mds.data_locks.IsHeld(fid)) co_return guard;
    guard.Release();
    std::vector<Fid> fids(1, fid);
    FidLocks::Guard over = co_await mds.data_locks.Lock(std::move(fids));
  }
}

void TruncateToZero(const Mds& mds, Transaction* transaction, Inode* inode, uint64_t object_sequence) {
  transaction->Dirty(inode);
  QueueDestroy(*inode, &transaction->batch());
  if (inode->inline_data && inode->size > 0) transaction->batch().Erase(FidKey(Table::kBody, inode->fid));
  inode->size = inode->blocks = 0;
  inode->inline_data = mds.options.inline_limit > 0;
  inode->layout.object_sequence = object_sequence;
  ++inode->layout.generation;
}

bool NeedsCut(const Inode& inode, uint64_t size) {
  return !inode.inline_data && size > 0 && size < inode.size;
}

Task<StatusOr<uint64_t>> Cut(MdsPtr mds, Fid fid, uint64_t size) {
  Layout layout;
  {
    FidLocks::Guard guard = co_await LockOne(*mds, fid);
    CO_ASSIGN_OR_RETURN(InodePtr inode, mds->tables->GetInode(fid));
    layout = inode->layout;
    KvBatch batch;
    TruncateRecord record;
    record.size = size;
    batch.Put(FidKey(Table::kTruncate, fid), EncodeTruncate(record));
    CO_RETURN_IF_ERROR(co_await mds->tables->CommitBatch(std::move(batch)));
  }
  // Else a loss of power could bring back the old size without the old data.
  CO_RETURN_IF_ERROR(co_await mds->tables->Sync());
  auto left = co_await CutObjects(mds, std::move(layout), size);
  CO_RETURN_IF_ERROR(left.status());
  co_return left->blocks;
}

void FinishCut(Transaction* transaction, Inode* inode, uint64_t size, uint64_t blocks) {
  transaction->Dirty(inode);
  inode->size = size;
  inode->blocks = blocks;
  ++inode->layout.generation;
  transaction->batch().Erase(FidKey(Table::kTruncate, inode->fid));
}

Task<Status> MoveOutLocked(MdsPtr mds, Fid fid) {
  bool done = false;
  while (!done) CO_RETURN_IF_ERROR(co_await TryMoveOut(mds, fid, &done));
  co_return OkStatus();
}

Task<Status> ResumeTruncations(MdsPtr mds) {
  constexpr size_t kPage = 1024;
  std::string from = TableKey(Table::kTruncate);
  const std::string to = PrefixEnd(from);
  for (bool more = true; more;) {
    CO_ASSIGN_OR_RETURN(auto pending, mds->tables->Scan(from, to, kPage));
    more = pending.size() == kPage;
    if (more) from = pending.back().key + '\0';
    for (const KvEntry& entry : pending) {
      ByteReader key(std::string_view(entry.key).substr(1));
      const Fid fid = key.ReadFid();
      CO_ASSIGN_OR_RETURN(TruncateRecord record, ParseTruncate(entry.value));
      std::vector<Fid> fids(1, fid);
      FidLocks::Guard data = co_await mds->data_locks.Lock(std::move(fids));
      Spawn(mds->env.executor, ResumeOne(mds, fid, record.size, std::move(data)));
    }
  }
  co_return OkStatus();
}

}  // namespace nacre::mds
