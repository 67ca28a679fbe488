// Handles: open and release.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "client/core.h"
#include "client/permission.h"
#include "client/settling.h"
#include "common/limits.h"

namespace nacre::client {
namespace {

// The inode's mutex is held.
bool MayOpen(const Inode& inode, const Caller& caller, int flags) {
  const bool directory = S_ISDIR(inode.attr.mode());
  if (!directory && !S_ISREG(inode.attr.mode())) return false;
  const bool execute = (static_cast<uint32_t>(flags) & kOpenToExecute) != 0;
  uint32_t want = execute ? kMayExecute : 0;
  if (!execute && (flags & O_ACCMODE) != O_WRONLY) want |= kMayRead;
  if ((flags & O_ACCMODE) != O_RDONLY || (flags & O_TRUNC) != 0) want |= kMayWrite;
  return MayAccess(inode.attr, caller, want) && !(directory && (want & kMayWrite) != 0);
}

}  // namespace

// An open that the MDS need not hear of: what is known here is true under a lease of the directory, and the
// access is allowed. One that writes only where this client is alone with the file: the MDS says whether it
// is when it is asked. Before the lease goes, or this client takes the file out from under it, the MDS is
// told of the handle (Handles::Tell).
HandlePtr Core::TryOpenLocally(const Caller& caller, Fid fid, int flags) {
  const bool writes = (flags & O_ACCMODE) != O_RDONLY || (flags & O_TRUNC) != 0;
  if (!options_.caching) return nullptr;
  InodePtr inode = inodes_->Find(fid);
  if (inode == nullptr) return nullptr;
  HandlePtr handle = handles_->New(caller, inode, flags);
  const bool counts = handles_->CountUntold(*handle, [&](const Inode& known) {
    if (!knowledge_->Trusts(known) || (writes && known.alone_under != known.covered)) return false;
    return !known.gone && known.attr.nlink() > 0 && MayOpen(known, caller, flags);
  });
  return counts ? handle : nullptr;
}

Task<StatusOr<HandlePtr>> Core::Open(const Caller& caller, Fid fid, int flags) {
  NACRE_ENTER(pass);
  co_return co_await OpenInside(caller, fid, flags);
}

// A handle of which the MDS is told counts from before it is asked, so that a Reclaim names it whose open has
// been answered just before the stream was lost.
Task<StatusOr<HandlePtr>> Core::OpenInside(const Caller& caller, Fid fid, int flags) {
  if (HandlePtr handle = TryOpenLocally(caller, fid, flags)) {
    if ((flags & O_TRUNC) == 0) co_return handle;
    auto cut = co_await TryCutBehind(handle->inode);
    if (cut.ok() && *cut) co_return handle;
    DropHandle(handle);
    CO_RETURN_IF_ERROR(cut.status());
  }
  InodePtr inode = inodes_->Get(fid);
  HandlePtr handle = handles_->New(caller, inode, flags);
  const uint64_t named = handles_->CountTold(*handle);
  proto::MetadataRequest request;
  *request.mutable_open()->mutable_fid() = ToProto(fid);
  request.mutable_open()->set_flags(static_cast<uint32_t>(flags));
  Status opened = co_await OpenAtMds(caller, inode, std::move(request));
  NoteAnswer(*handle, named, opened.ok());
  if (!opened.ok()) {
    DropHandle(handle);
    co_return opened;
  }
  co_return handle;
}

// The MDS has answered an open. If a Reclaim has named the handle meanwhile, the
// repeat of the open may have counted it once more.
void Core::NoteAnswer(FileHandle& handle, uint64_t named, bool opened) {
  Inode& inode = *handle.inode;
  std::lock_guard lock(inode.mutex);
  if (inode.named != named) {
    inode.overtold = true;
  } else if (!opened) {
    --inode.told;
  }
}

Task<Status> Core::OpenAtMds(const Caller& caller, InodePtr inode, proto::MetadataRequest request) {
  if ((request.open().flags() & O_TRUNC) != 0)
    co_return co_await OpenEmpty(caller, std::move(inode), std::move(request));
  request.set_want_lease(options_.caching && (request.open().flags() & O_ACCMODE) != O_RDONLY);
  Learning learning = leases_->BeginLearning();
  CO_ASSIGN_OR_RETURN(proto::MetadataReply reply, co_await mds_->Ask(caller, std::move(request)));
  mds_->TakeScopes(&learning, reply);
  const proto::Entry& entry = reply.entry();
  Knowledge::Learn(*inode, entry.attr(), &entry.layout(), &entry.data());
  leases_->Cover(learning, *inode, entry.attr());
  std::lock_guard lock(inode->mutex);
  inode->NoteAlone(entry.alone_under());
  co_return OkStatus();
}

// An open with O_TRUNC. The MDS may leave the truncation to this client (TryCutBehind).
Task<Status> Core::OpenEmpty(const Caller& caller, InodePtr inode, proto::MetadataRequest request) {
  request.mutable_open()->set_may_hold_back(MayHoldCutsBack());
  CO_ASSIGN_OR_RETURN(const bool held_back, co_await EmptyAtMds(caller, inode, std::move(request)));
  if (!held_back) co_return OkStatus();
  CO_ASSIGN_OR_RETURN(const bool cut, co_await TryCutBehind(inode));
  if (cut) co_return OkStatus();
  proto::MetadataRequest truncate;
  *truncate.mutable_setattr()->mutable_fid() = ToProto(inode->fid);
  truncate.mutable_setattr()->set_set_size(true);
  truncate.mutable_setattr()->set_open_handle(true);
  auto truncated = co_await TruncateAtMds(caller, inode, std::move(truncate));
  co_return truncated.status();
}

// Empties the file at the MDS. Returns whether the MDS leaves the truncation to this client. Old content that
// is held back must neither be seen nor be sent afterwards.
Task<StatusOr<bool>> Core::EmptyAtMds(const Caller& caller, InodePtr inode, proto::MetadataRequest request) {
  RangeLock::Guard range = co_await moving_out_->LockWhole(inode, MayGiveUp::kYes);
  if (!range) co_return GivenUp();
  CO_RETURN_IF_ERROR(co_await telling_->TellCut(inode));
  Frozen frozen(cache_, &inode->data);  // kept, as long as the MDS may refuse
  co_await cache_->WaitFlights(inode->data, 0, UINT64_MAX);
  CO_RETURN_IF_ERROR(
      co_await telling_->SendPending(inode));  // or the MDS takes it for empty, and keeps its objects
  AsyncMutex::Guard meta = co_await inode->meta.Lock();
  Settling settling(*early_, {inode});
  CO_ASSIGN_OR_RETURN(proto::MetadataReply reply, co_await mds_->Ask(caller, std::move(request)));
  const proto::Entry& entry = reply.entry();
  if (!entry.held_back()) data_->Discard(*inode);
  Knowledge::Learn(*inode, entry.attr(), &entry.layout(), &entry.data());
  std::lock_guard lock(inode->mutex);
  inode->NoteAlone(entry.alone_under());
  if (entry.held_back()) co_return true;
  inode->rewritten = true;
  inode->EndData();
  inode->mutation = session_->mutations();
  co_return false;
}

Task<Status> Core::Flush(HandlePtr handle, uint64_t lock_owner) {
  NACRE_ENTER(pass);
  CO_RETURN_IF_ERROR(entrance_.Check(*handle));
  bool locked = false;
  {
    std::lock_guard lock(handle->inode->mutex);
    for (const proto::LockRange& held : handle->inode->locks)
      locked = locked || (!held.flock() && held.owner() == lock_owner);
  }
  if (locked) {  // POSIX: any close drops the owner's locks on the file
    proto::LockRange all;
    all.set_owner(lock_owner);
    all.set_type(F_UNLCK);
    all.set_end(INT64_MAX);
    CO_RETURN_IF_ERROR(co_await SetLock(handle, std::move(all), false, 0));
  }
  if (handle->writable()) {
    Status sent = co_await write_behind_->SendClosed(handle->inode, false);
    CO_RETURN_IF_ERROR(TakeError(*handle));  // what SendClosed met is among them
    co_return sent;
  }
  co_return TakeError(*handle);
}

Task<Status> Core::Release(HandlePtr handle) {
  Gate::Pass pass = entrance_.gate().TryEnter();
  if (!pass) pass = co_await entrance_.gate().Enter();           // cancelled or not
  if (handle->epoch != entrance_.epoch()) co_return OkStatus();  // nothing of it is left
  {
    std::lock_guard lock(handle->inode->mutex);
    if (std::exchange(handle->released, true)) co_return ErrnoError(EBADF, "the handle was released before");
  }
  if (handle->writable())
    (void)co_await write_behind_->SendClosed(handle->inode, true);  // errors are in the inode
  Status error = TakeError(*handle);
  DropHandle(handle);
  co_return error;
}

void Core::DropHandle(const HandlePtr& handle) {
  const InodePtr& inode = handle->inode;
  const Handles::Dropped dropped = handles_->Drop(*handle);
  if (dropped.last_writer) returns_->ReturnOfFile(inode);
  if (dropped.pages_lease != 0)
    background_.Start(
        returns_->ReturnPages(entrance_.epoch(), inode, dropped.pages_lease, leases_->BeginLearning()));
  if (dropped.file_gone) data_->Discard(*inode);
  if (dropped.to_close)
    background_.Start(handles_->CloseAtMds(inode, *dropped.to_close, handle->writable(), entrance_.epoch()));
}

}  // namespace nacre::client
