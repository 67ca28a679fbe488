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

void CloseAnswered(Inode& inode) {
  std::vector<OneShot<Unit>> waiters;
  {
    std::lock_guard lock(inode.mutex);
    if (--inode.closes_asked == 0) waiters.swap(inode.close_waiters);
  }
  for (const OneShot<Unit>& waiter : waiters) waiter.Set({});
}

}  // namespace

HandlePtr Core::NewHandle(const Caller& caller, InodePtr inode, int flags) {
  auto handle = std::make_shared<FileHandle>(std::move(inode), flags, caller, epoch_);
  std::lock_guard lock(mutex_);
  handle->mount_errors_seen = mount_errors_.Begin();
  return handle;
}

// The inode's mutex is held. `told`: the MDS knows of the handle.
void Core::CountHandle(FileHandle& handle, bool told) {
  Inode& inode = *handle.inode;
  ++inode.opens;
  if (handle.writable()) ++inode.write_opens;
  handle.told = told;
  if (told) ++inode.told;
  handle.errors_before = inode.errors.count();
  handle.errors_seen = inode.errors.Begin();
}

HandlePtr Core::MakeHandle(const Caller& caller, InodePtr inode, int flags) {
  HandlePtr handle = NewHandle(caller, std::move(inode), flags);
  std::lock_guard lock(handle->inode->mutex);
  CountHandle(*handle, true);
  return handle;
}

// An open that the MDS need not hear of: what is known here is true under a lease of the directory, and the
// access is allowed. One that writes only where this client is alone with the file: the MDS says whether it
// is when it is asked. Before the lease goes, or this client takes the file out from under it, the MDS is
// told of the handle (TellOpens).
HandlePtr Core::TryOpenLocally(const Caller& caller, Fid fid, int flags) {
  const bool writes = (flags & O_ACCMODE) != O_RDONLY || (flags & O_TRUNC) != 0;
  if (!WantsScopes()) return nullptr;
  InodePtr inode = inodes_->Find(fid);
  if (inode == nullptr) return nullptr;
  HandlePtr handle = NewHandle(caller, inode, flags);
  // The one who ends the lease looks through untold_ afterwards, with this mutex held.
  std::lock_guard order(mutex_);
  std::lock_guard lock(inode->mutex);
  if (!Trusts(*inode) || (writes && inode->alone_under != inode->covered)) return nullptr;
  if (inode->gone || inode->attr.nlink() == 0 || !MayOpen(*inode, caller, flags)) return nullptr;
  CountHandle(*handle, false);
  inode->opened_under = inode->covered;
  untold_.insert(fid);
  return handle;
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
  HandlePtr handle = NewHandle(caller, inode, flags);
  uint64_t named = 0;
  {
    std::lock_guard lock(inode->mutex);
    named = inode->named;
    CountHandle(*handle, true);
  }
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
  request.set_want_lease(WantsScopes() && (request.open().flags() & O_ACCMODE) != O_RDONLY);
  Learning learning = BeginLearning();
  CO_ASSIGN_OR_RETURN(proto::MetadataReply reply, co_await Ask(caller, std::move(request)));
  TakeScopes(&learning, reply);
  const proto::Entry& entry = reply.entry();
  LearnFile(*inode, entry.attr(), &entry.layout(), &entry.data());
  Cover(learning, *inode, entry.attr());
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
  RangeLock::Guard range = co_await LockWhole(inode, MayGiveUp::kYes);
  if (!range) co_return GivenUp();
  CO_RETURN_IF_ERROR(co_await TellCut(inode));
  Frozen frozen(cache_, &inode->data);  // kept, as long as the MDS may refuse
  co_await cache_->WaitFlights(inode->data, 0, UINT64_MAX);
  CO_RETURN_IF_ERROR(co_await SendPending(inode));  // or the MDS takes it for empty, and keeps its objects
  AsyncMutex::Guard meta = co_await inode->meta.Lock();
  Settling settling(*this, {inode});
  CO_ASSIGN_OR_RETURN(proto::MetadataReply reply, co_await Ask(caller, std::move(request)));
  const proto::Entry& entry = reply.entry();
  if (!entry.held_back()) DiscardData(*inode);
  LearnFile(*inode, entry.attr(), &entry.layout(), &entry.data());
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
  CO_RETURN_IF_ERROR(CheckHandle(*handle));
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
    Status sent = co_await SendClosed(handle->inode, false);
    CO_RETURN_IF_ERROR(TakeError(*handle));  // what SendClosed met is among them
    co_return sent;
  }
  co_return TakeError(*handle);
}

Task<Status> Core::Release(HandlePtr handle) {
  Gate::Pass pass = gate_.TryEnter();
  if (!pass) pass = co_await gate_.Enter();           // cancelled or not
  if (handle->epoch != epoch_) co_return OkStatus();  // nothing of it is left
  {
    std::lock_guard lock(handle->inode->mutex);
    if (std::exchange(handle->released, true)) co_return ErrnoError(EBADF, "the handle was released before");
  }
  if (handle->writable()) (void)co_await SendClosed(handle->inode, true);  // errors are in the inode
  Status error = TakeError(*handle);
  DropHandle(handle);
  co_return error;
}

void Core::DropHandle(const HandlePtr& handle) {
  InodePtr inode = handle->inode;
  bool told = false, untold = false, last = false, all = false, leased = false;
  uint64_t pages_lease = 0;
  {
    std::lock_guard lock(inode->mutex);
    handle->released = true;
    --inode->opens;
    if (handle->writable()) --inode->write_opens;
    if (inode->write_opens == 0) inode->told_writes = 0;
    leased = inode->write_opens == 0 && inode->scope != nullptr && inode->scope->of_file();
    // Handles are alike to the MDS: which of them it was told of does not matter.
    told = inode->told > inode->opens;
    if (told) --inode->told;
    if (inode->overtold) told = false;
    untold = inode->opened_under != nullptr;
    last = inode->opens == 0;
    const bool kept = last && inode->kept_open;
    if (kept || (last && inode->attr_known && inode->attr.nlink() == 0)) inode->gone = true;
    all = kept || (last && inode->overtold);
    if (last) inode->kept_open = inode->overtold = false;
    if (last) pages_lease = ForgetPages(*inode);
    last = inode->gone;
    if (all || told) ++inode->closing;
  }
  if (untold) {
    std::lock_guard lock(mutex_);
    std::lock_guard inode_lock(inode->mutex);
    if (!IsUntold(*inode)) {
      inode->opened_under.reset();
      untold_.erase(inode->fid);
    }
  }
  if (leased) ReturnFileLease(inode);
  if (pages_lease != 0) Background(ReturnPages(epoch_, inode, pages_lease, BeginLearning()));
  if (last) DiscardData(*inode);
  if (all) {
    Background(CloseAtMds(inode, 0, handle->writable(), epoch_));
  } else if (told) {
    Background(CloseAtMds(inode, 1, handle->writable(), epoch_));
  }
}

// Not sent, and not repeated, as it stands when the MDS has been told since what is held (times_held_), or
// how often this file is open (Inode::named): those counts are right, but for a file that is not open here
// any more, which a Reclaim does not name. Count 0, all handles, is not sent once there are new ones: then it
// is up to the last of these.
Task<void> Core::CloseAtMds(InodePtr inode, uint32_t count, bool write, uint64_t epoch) {
  const Fid fid = inode->fid;
  // Bytes on their way to the objects must not arrive after their destruction: they would bring them back.
  // Until they have arrived the file counts as open (`closing`), also for an MDS that asks.
  co_await cache_->WaitFlights(inode->data, 0, UINT64_MAX);
  uint64_t held = 0, named = 0;
  {
    std::lock_guard lock(inode->mutex);
    held = times_held_;
    named = inode->named;
    --inode->closing;
  }
  for (;;) {
    bool asked = false;
    proto::MetadataRequest request;
    *request.mutable_close()->mutable_fid() = ToProto(fid);
    request.mutable_close()->set_count(count);
    request.mutable_close()->set_write(write);
    co_await queue_->Drain();  // the removal that keeps it open, and what was written to it
    std::function<bool()> still = [this, held, named, of = inode.get(), count, &asked] {
      std::lock_guard lock(of->mutex);
      if (count == 0 && of->told > 0) of->overtold = true;
      const bool outdated = count == 0 ? of->told > 0 : of->named != named;
      asked = !outdated && times_held_ == held;
      if (asked) ++of->closes_asked;
      return asked;
    };
    auto reply = co_await session_->CallOnce(epoch, std::move(request), std::move(still));
    if (asked) CloseAnswered(*inode);
    if (reply.ok() || !IsRetryable(reply.status())) co_return;
    held = times_held_;
    {
      std::lock_guard lock(mutex_);
      if (stopping_) co_return;  // the end of the session closes it as well
    }
    std::lock_guard lock(inode->mutex);
    if (inode->told > 0 || inode->kept_open) co_return;
    count = 0;
  }
}

}  // namespace nacre::client
