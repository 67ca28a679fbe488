// fsync and its relatives, the errors of write-behind that they report, and losses of power at the servers.
#include <sys/stat.h>

#include <cerrno>

#include "client/core.h"
#include "common/log.h"

namespace nacre::client {
namespace {

constexpr size_t kSyncsAtOnce = 32;  // files of a mount

Task<Status> FirstError(std::vector<Task<Status>> tasks) {
  const std::vector<Status> ended = co_await WhenAll(std::move(tasks));
  Status first;
  for (const Status& one : ended) first.Update(one);
  co_return first;
}

}  // namespace

Task<Status> Core::Fsync(HandlePtr handle, bool data_only) {
  NACRE_ENTER(pass);
  CO_RETURN_IF_ERROR(entrance_.Check(*handle));
  InodePtr inode = handle->inode;
  bool regular = false;
  {
    std::lock_guard lock(inode->mutex);
    regular = S_ISREG(inode->attr.mode());
  }
  if (!regular) data_only = false;  // all of a directory is names
  Status synced;
  if (regular)
    synced = co_await mds_->LoadFile(inode);  // it may have objects that this client has not heard of
  if (synced.ok()) synced = co_await SyncFile(inode, data_only);
  CO_RETURN_IF_ERROR(TakeErrorForSync(*handle));  // what SyncFile met is among them
  CO_RETURN_IF_ERROR(handles_->TakeError(*handle));
  co_return synced;
}

Task<Status> Core::SyncFile(InodePtr inode, bool data_only) {
  ScopePtr alone;  // nobody else changes the file
  {
    AsyncMutex::Guard meta = co_await LockMeta(inode, MetadataQueue::Hurry::kYes);
    CO_RETURN_IF_ERROR(co_await SendInline(inode));
  }
  CO_RETURN_IF_ERROR(co_await SendData(inode, 0, UINT64_MAX));
  bool tell = true;
  {
    std::lock_guard lock(inode->mutex);
    if (data_only && inode->pending.sent_size <= inode->attr.size()) tell = false;
  }
  if (tell) CO_RETURN_IF_ERROR(co_await SendPending(inode));
  LetGo(*inode);
  bool others_synced = false;
  {
    std::lock_guard lock(inode->mutex);
    alone = inode->data_scope;
    others_synced = alone != nullptr && (inode->made_under == alone || inode->synced_under == alone);
  }
  CO_RETURN_IF_ERROR(co_await durability_->SyncObjects(entrance_.epoch(), inode, alone == nullptr));
  uint64_t changed = data_only ? 0 : session_->mutations();  // fsync: the names that lead here, too
  {
    std::lock_guard lock(inode->mutex);
    changed = std::max(changed, inode->mutation);
  }
  CO_RETURN_IF_ERROR(
      co_await durability_->SyncMutations(entrance_.epoch(), changed, !others_synced || !data_only));
  std::lock_guard lock(inode->mutex);
  inode->synced_under = alone;
  co_return OkStatus();
}

// Returns when all that this mount has changed so far is on stable storage, as behind an fsync of each file.
Task<Status> Core::SyncMount() {
  Status result = co_await SendEverything();
  std::vector<Task<Status>> syncs;
  for (const InodePtr& inode : inodes_->All()) {
    std::unique_lock lock(inode->mutex);
    const bool unsynced = inode->attr_known && S_ISREG(inode->attr.mode()) && !inode->gone &&
                          (!inode->unsynced.empty() || inode->pending.any());
    lock.unlock();
    if (unsynced) syncs.push_back(SyncFile(inode, /*data_only=*/false));
    if (syncs.size() < kSyncsAtOnce) continue;
    result.Update(co_await FirstError(std::exchange(syncs, {})));
  }
  result.Update(co_await FirstError(std::move(syncs)));
  result.Update(
      co_await durability_->SyncMutations(entrance_.epoch(), session_->mutations(), /*shared=*/false));
  co_return result;
}

// --- errors ---

// Write and close report what went wrong since the handle was opened; fsync also what nobody has been told of
// before.
Status Core::TakeError(FileHandle& handle) {
  std::lock_guard lock(handle.inode->mutex);
  if (handle.inode->errors.count() == handle.errors_before) return OkStatus();
  return handle.inode->errors.Take(&handle.errors_seen);
}

Status Core::TakeErrorForSync(FileHandle& handle) {
  std::lock_guard lock(handle.inode->mutex);
  return handle.inode->errors.Take(&handle.errors_seen);
}

// --- losses of power ---

// The OST has lost power before what was written there was synced.
Status Core::NoteLost(const InodePtr& inode, OstIndex ost) {
  Status lost = ErrnoError(
      EIO, absl::StrFormat(
               "file %s: OST %d has lost power before what was written there was synced; it may be gone",
               inode->fid.ToString(), ost));
  LogError("%s", std::string(lost.message()));
  NoteError(*inode, lost);
  background_.Start(DropLost(inode, false));
  return lost;
}

// The cache may have newer bytes than the objects; other clients read those of the objects.
Task<void> Core::DropLost(InodePtr inode, bool of_mdt) {
  {
    Gate::Pass pass = co_await entrance_.gate().Enter();
    RangeLock::Guard range = co_await LockWhole(inode, MayGiveUp::kNo);
    if (of_mdt)
      (void)co_await SendAll(inode);  // errors are noted in the inode
    else
      (void)co_await SendData(inode, 0, UINT64_MAX);
    DropData(*inode, 0, UINT64_MAX);
    if (of_mdt) {
      std::lock_guard lock(inode->mutex);
      inode->Forget();  // what it took to send that, too
    }
  }
  std::vector<Fid> fids(1, inode->fid);
  co_await kernel_.ForgetAll(std::move(fids));
}

// As soon as it is known, so that nobody goes on with a cache that says what nobody else can read. What is
// cached under leases beside other clients may be what they had written there and not synced.
void Core::OnLoss(OstIndex ost, uint64_t losses) {
  for (const InodePtr& inode : inodes_->All()) {
    durability_->CheckLosses(inode, ost, losses);
    bool shared = false;
    {
      std::lock_guard lock(inode->mutex);
      shared = inode->data_scope != nullptr || inode->ContentLeased();
      inode->pages.content = 0;
    }
    if (shared) background_.Start(DropLost(inode, false));
  }
}

// The MDT has lost power: of what was changed since the last sync, some may be gone; nothing that is
// remembered from before is certain, nor what the cache and the kernel have of a file: it may have other
// objects.
Task<void> Core::ForgetLostChanges(uint64_t synced) {
  co_await entrance_.gate().CloseBetween(environment_.clock);
  std::vector<Fid> paged = pages_->Files();
  mds_->EndScopes();
  std::vector<InodePtr> unsent;
  for (const InodePtr& inode : inodes_->All()) {
    if (HoldsBack(*inode) || cache_->InFlight(inode->data))
      unsent.push_back(inode);
    else
      DropData(*inode, 0, UINT64_MAX);
    {
      std::lock_guard lock(inode->mutex);
      if (inode->mutation <= synced) continue;
      inode->mutation = 0;
    }
    Status lost = ErrnoError(
        EIO, absl::StrFormat("file %s: the MDT has lost power before its last changes were synced; "
                             "they may be gone",
                             inode->fid.ToString()));
    LogError("%s", std::string(lost.message()));
    NoteError(*inode, lost);
  }
  inodes_->Forget();
  entrance_.gate().Open();
  for (const InodePtr& inode : unsent) background_.Start(DropLost(inode, true));
  co_await kernel_.ForgetAll(std::move(paged));
}

}  // namespace nacre::client
