// Data of files under WRITE leases of their directories, or of their own: in the cache and held back
// (docs/decisions/0063-data-under-leases.md, 0075-write-leases-of-files.md).
//
// A file is either worked on so by this client (Inode::data_scope) or past the cache. It changes from one to
// the other with all of Inode::range locked, so whoever has locked a part of that sees one way of working.
// The data is given up, that is sent and dropped, before the lease goes back, and before this client takes
// the file out from under it.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>

#include "client/core.h"
#include "client/within.h"
#include "common/log.h"

namespace nacre::client {
namespace {

// Of who wants the directory, for the data of one file.
constexpr Duration kPatience = 1s;

Status PutInline(Inode& inode, uint64_t offset, std::span<const std::span<const std::byte>> pieces,
                 size_t size) {
  std::lock_guard lock(inode.mutex);
  return inode.WriteInline(offset, pieces, size);
}

}  // namespace

// --- taking ---

// With the order (EarlyChanges) and the inode's mutex held: nobody else may change the file, nor has pages of
// it, nor a handle from before by which it could be written to without asking the MDS.
bool Core::IsAloneWith(const Inode& inode) const {
  if (!early_->MayAnswer() || !early_->MayChange(inode) || inode.alone_under != inode.covered) return false;
  return S_ISREG(inode.attr.mode()) && inode.attr.nlink() == 1;
}

// The same held: and its content is known.
bool Core::MayTakeData(const Inode& inode) const {
  if (!IsAloneWith(inode)) return false;
  const auto content = inode.CurrentContent();
  return content && (inode.Inline() || inode.layout->generation() == inode.attr.layout_generation());
}

// Whether it may be taken: `known`, or once its content has been asked for.
bool Core::WantsData(Inode& inode, bool* known) {
  const EarlyChanges::Order order = early_->TakeOrder();
  std::lock_guard lock(inode.mutex);
  *known = MayTakeData(inode);
  return *known || IsAloneWith(inode);
}

// Whether the file's data is worked on in the cache from now on.
Task<bool> Core::TakeData(InodePtr inode) {
  if (HoldsData(*inode)) co_return true;
  bool known = false;
  if (!WantsData(*inode, &known)) co_return false;
  if (!known) {
    Status loaded = co_await mds_->LoadFile(inode);
    if (!loaded.ok() || !WantsData(*inode, &known) || !known) co_return false;
  }
  RangeLock::Guard range = co_await inode->range.LockUnlessCancelled(0, RangeLock::kEnd, true);
  if (!range) co_return false;
  co_return TakeDataLocked(inode);
}

// The same if that can be without waiting.
bool Core::TryTakeData(const InodePtr& inode) {
  if (HoldsData(*inode)) return true;
  RangeLock::Guard range = inode->range.TryLock(0, RangeLock::kEnd, true);
  return range && TakeDataLocked(inode);
}

// All of the file is locked.
bool Core::TakeDataLocked(const InodePtr& inode) {
  if (HoldsData(*inode)) return true;
  DropData(*inode, 0, UINT64_MAX);  // of readers, whose leases may have ended
  const EarlyChanges::Order order = early_->TakeOrder();
  std::lock_guard lock(inode->mutex);
  // The file is noted before the lease is looked at: an end that is not seen here finds it.
  if (!MayTakeData(*inode) || !inode->covered->NoteData(inode->fid)) return false;
  inode->data_scope = inode->covered;
  if (inode->data_scope->of_file()) own_data_.Note(inode->fid);
  if (inode->made_under != inode->covered) inode->unsynced_whole = false;  // others may have written
  return true;
}

// --- writing ---

Task<RangeLock::Guard> Core::LockForWriting(Inode& inode, uint64_t begin, uint64_t end, MayGiveUp may) {
  if (may == MayGiveUp::kYes) return inode.range.LockUnlessCancelled(begin, end, true);
  return inode.range.Lock(begin, end, true);
}

// Locks what a write of the file needs whose data is worked on here: all of an inline file. `offset`: none
// for the end, which it is set to.
Task<StatusOr<Core::HeldRange>> Core::LockHeld(InodePtr inode, std::optional<uint64_t> offset, size_t size,
                                               MayGiveUp may) {
  const bool append = !offset;
  for (;;) {
    HeldRange held;
    {
      std::lock_guard lock(inode->mutex);
      held.is_inline = inode->Inline();
      held.offset = offset.value_or(inode->Size());
    }
    const bool whole = held.is_inline || append;
    held.range = co_await LockForWriting(*inode, held.is_inline ? 0 : held.offset,
                                         whole ? RangeLock::kEnd : held.offset + size, may);
    if (!held.range) co_return GivenUp();
    std::lock_guard lock(inode->mutex);
    held.taken = inode->data_scope != nullptr;
    held.outgrowing = inode->outgrowing != nullptr;
    if (held.is_inline && append) held.offset = inode->Size();
    const bool same = inode->Inline() == held.is_inline && (!append || held.offset == inode->Size());
    if (!held.taken || same) co_return held;
  }
}

// Nothing: the file's data is not worked on here any more. No offset: at the end.
Task<StatusOr<std::optional<size_t>>> Core::WriteHeld(HandlePtr handle, std::optional<uint64_t> offset,
                                                      Pieces pieces, size_t size, MayGiveUp may) {
  InodePtr inode = handle->inode;
  CO_ASSIGN_OR_RETURN(const HeldRange held, co_await LockHeld(inode, offset, size, may));
  if (!held.taken) co_return std::optional<size_t>();
  if (held.is_inline)
    CO_RETURN_IF_ERROR(co_await mds_->LoadFile(inode));  // it may have gone for want of memory
  early_->CountWrite();
  if (held.is_inline && held.offset + size <= inline_limit_ && !held.outgrowing) {
    uint64_t bytes;
    {
      std::lock_guard lock(inode->mutex);
      bytes = std::max<uint64_t>(held.offset + size, inode->Size()) + kRecordRoom;
    }
    const bool room = co_await Hold(inode, bytes);
    if (!room) {
      CO_ASSIGN_OR_RETURN(size_t written, co_await WriteInlineNow(handle, held.offset, pieces, size));
      co_return std::optional<size_t>(written);
    }
    CO_RETURN_IF_ERROR(PutInline(*inode, held.offset, pieces, size));
    NoteWrite(*inode, handle->caller, held.offset + size);
    dirty_.List(inode);
    if (!room_.TryHold(*inode, bytes)) CO_RETURN_IF_ERROR(co_await SendAll(inode));
    co_return std::optional<size_t>(size);
  }
  const bool direct = (handle->flags & O_DIRECT) != 0;
  if (held.is_inline && !direct && TryOutgrow(inode, held.offset + size)) {
    CO_RETURN_IF_ERROR(PutInline(*inode, held.offset, pieces, size));
    NoteWrite(*inode, handle->caller, held.offset + size);
    dirty_.List(inode);
    co_return std::optional<size_t>(size);
  }
  if (held.is_inline) CO_RETURN_IF_ERROR(co_await MoveOut(inode));
  (void)co_await Hold(inode, kRecordRoom);
  StatusOr<size_t> written = co_await WriteCachedObjects(handle, held.offset, pieces, size);
  if (!written.ok()) LetGo(*inode);
  CO_RETURN_IF_ERROR(written.status());
  // The MDT decides now if it has no room to promise. Whoever has sent what was there before may have let go
  // what this write held.
  if (!room_.TryHold(*inode, kRecordRoom)) CO_RETURN_IF_ERROR(co_await SendAll(inode));
  co_return std::optional<size_t>(*written);
}

// --- giving up ---

// Errors are noted in the inode. Takes as long as the servers of the file's objects.
Task<void> Core::GiveDataUp(InodePtr inode) {
  if (!HoldsData(*inode)) co_return;
  RangeLock::Guard range = co_await LockWhole(inode, MayGiveUp::kNo);
  (void)co_await SendAll(inode);
  DropData(*inode, 0, UINT64_MAX);
  {
    std::lock_guard lock(inode->mutex);
    inode->EndData();
  }
  ForgetOwnData(inode->fid);
}

// Gives up the data that is here under a lease, which has ended. A file whose servers are away must not keep
// the lease from those who want others: it gets a lease of its own, which goes back when its data has been
// sent. Returns these files, and those that had such a lease before: a file that has come here from another
// directory may be late under the lease of that one.
Task<std::set<Fid>> Core::GiveDataUpUnder(uint64_t epoch, ScopePtr scope) {
  std::set<Fid> late;
  if (options_.plant_kept_data) co_return late;
  early_->AwaitOrder();  // renames that found it good are done
  std::vector<InodePtr> files;
  for (const Fid& fid : scope->with_data()) {
    InodePtr inode = inodes_->Find(fid);
    if (inode == nullptr) continue;
    std::lock_guard lock(inode->mutex);
    if (inode->data_scope == nullptr || inode->data_scope->good()) continue;
    if (inode->HasLateData())
      late.insert(fid);
    else
      files.push_back(inode);
  }
  std::vector<OneShot<Unit>> ends;
  for (const InodePtr& inode : files) ends.push_back(background_.Start(GiveDataUp(inode)));
  const Duration until = environment_.clock.Now() + kPatience;
  for (size_t i = 0; i < files.size(); ++i) {
    const Duration left = std::max<Duration>(until - environment_.clock.Now(), 0ns);
    (void)co_await ComesWithin(environment_.clock, left, ends[i]);
    if (!HoldsData(*files[i])) continue;
    const bool leased = co_await LeaseLateData(epoch, files[i], ends[i]);
    if (leased) late.insert(files[i]->fid);
  }
  co_return late;
}

// Whether the file has a lease of its own now. False: the data has been given up after all, or the session is
// over. The MDS refuses the lease if the file lies in another directory by now than the one that goes back;
// then that one's lease is what the file becomes late under, or it is on its way back, too, and this finds
// the file's own lease later.
Task<bool> Core::LeaseLateData(uint64_t epoch, InodePtr inode, OneShot<Unit> end) {
  for (;;) {
    Learning present = leases_->BeginLearning();
    StatusOr<uint64_t> lease = co_await AskForLateLease(epoch, inode, present.reclaims);
    if (lease.ok() && *lease == 0) continue;
    if (lease.ok()) {
      background_.Start(ReturnLateData(epoch, std::move(inode), *lease, end, std::move(present)));
      co_return true;
    }
    LogWarning("file %s: its directory's lease waits for its data: %s", inode->fid.ToString(),
               std::string(lease.status().message()));
    const bool given_up = co_await ComesWithin(environment_.clock, kPatience, end);
    if (given_up) co_return false;
    std::lock_guard lock(inode->mutex);
    if (inode->HasLateData()) co_return true;
  }
}

// The lease is among those that go back (Inode::leaving) from when it is known here. 0: a Reclaim that could
// not name it has ended it, or will; `reclaims`: how many had been begun before the request.
Task<StatusOr<uint64_t>> Core::AskForLateLease(uint64_t epoch, InodePtr inode, uint64_t reclaims) {
  proto::MetadataRequest request;
  *request.mutable_acquire_lease()->mutable_resource() = ToProto(inode->fid);
  request.mutable_acquire_lease()->set_mode(proto::LEASE_WRITE);
  {
    std::lock_guard lock(inode->mutex);
    ++inode->late_requests;
  }
  Reply reply = co_await mds_->AskIn(epoch, std::move(request));
  if (reply.ok() && reply->lease().lease().mode() != proto::LEASE_WRITE)
    reply = ErrnoError(EPROTO, "the MDS has granted something else");
  uint64_t lease = 0;
  std::vector<OneShot<Unit>> waiters;  // of the inode, for the end of the request
  if (reply.ok() && leases_->TakeLate(*inode, reply->lease().lease().id(), reclaims))
    lease = reply->lease().lease().id();
  {
    std::lock_guard lock(inode->mutex);
    if (--inode->late_requests == 0) waiters.swap(inode->late_request_waiters);
  }
  for (OneShot<Unit>& waiter : waiters) waiter.Set({});
  CO_RETURN_IF_ERROR(reply.status());
  co_return lease;
}

// A lease of the file has been asked back that nobody here knows: it may be the one that is asked for, which
// must not go back before the data has been sent. Returns when the MDS has said whether it is.
Task<void> Core::AwaitLateRequests(InodePtr inode, uint64_t lease) {
  OneShot<Unit> ended;
  {
    std::lock_guard lock(inode->mutex);
    if (inode->late_requests == 0 || inode->pages.lease == lease) co_return;
    inode->late_request_waiters.push_back(ended);
  }
  co_await ended.Wait();
}

Task<void> Core::ReturnLateData(uint64_t epoch, InodePtr inode, uint64_t lease, OneShot<Unit> end,
                                Learning present) {
  co_await end.Wait();
  std::vector<Fid> fids(1, inode->fid);
  co_await kernel_.ForgetAll(std::move(fids));
  co_await ReturnPages(epoch, std::move(inode), lease, std::move(present));
}

}  // namespace nacre::client
