// fsync and its relatives, and the errors of write-behind that they report.
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
    AsyncMutex::Guard meta = co_await moving_out_->LockMeta(inode, MetadataQueue::Hurry::kYes);
    CO_RETURN_IF_ERROR(co_await telling_->SendInline(inode));
  }
  CO_RETURN_IF_ERROR(co_await data_->Send(inode, 0, UINT64_MAX));
  bool tell = true;
  {
    std::lock_guard lock(inode->mutex);
    if (data_only && inode->pending.sent_size <= inode->attr.size()) tell = false;
  }
  if (tell) CO_RETURN_IF_ERROR(co_await telling_->SendPending(inode));
  room_.LetGo(*inode);
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
  Status result = co_await write_behind_->SendEverything();
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

}  // namespace nacre::client
