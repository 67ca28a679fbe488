// Data of large files under WRITE leases of their directories: in the cache and held back, as under the
// filesystem's lease (docs/decisions/0063-data-under-leases.md).
//
// A file is either worked on so by this client (Inode::data_scope) or past the cache. It changes from one to
// the other with all of Inode::range locked, so whoever has locked a part of that sees one way of working.
// The data is given up, that is sent and dropped, before the lease goes back, and before this client takes
// the file out from under it.
#include <sys/stat.h>

#include <algorithm>

#include "client/core.h"
#include "client/within.h"
#include "common/log.h"

namespace nacre::client {
namespace {

// Of who wants the directory, for the data of one file.
constexpr Duration kPatience = 1s;

}  // namespace

bool Core::HasScopedData(Inode& inode) {
  std::lock_guard lock(inode.mutex);
  return inode.data_scope != nullptr;
}

bool Core::CachesData(Inode& inode) { return cached() || HasScopedData(inode); }

// --- taking ---

// With behind_mutex_ and the inode's mutex held: nobody else may change the file, nor has pages of it, nor a
// handle from before by which it could be written to without asking the MDS.
bool Core::MayTakeData(const Inode& inode) const {
  const proto::Attr& attr = inode.attr;
  if (cached() || !MayAnswerEarly() || !MayChangeEarly(inode)) return false;
  if (inode.alone_under != inode.covered || inode.writer_under != inode.covered) return false;
  if (!S_ISREG(attr.mode()) || attr.nlink() != 1 || inode.Inline() || inode.layout == nullptr) return false;
  return inode.layout->generation() == attr.layout_generation();
}

// Whether it is a file of one's own that gets objects for this write.
bool Core::OutgrowsMdt(Inode& inode, bool append, uint64_t offset, size_t size) const {
  std::lock_guard lock(inode.mutex);
  const bool own = inode.IsCovered() && inode.covered->writes() && inode.writer_under == inode.covered;
  return own && inode.attr.inline_data() && (append ? inode.Size() : offset) + size > inline_limit_;
}

// Whether the file's data is worked on in the cache from now on.
Task<bool> Core::TakeData(InodePtr inode) {
  if (HasScopedData(*inode)) co_return true;
  {
    std::lock_guard order(behind_mutex_);
    std::lock_guard lock(inode->mutex);
    if (!MayTakeData(*inode)) co_return false;
  }
  RangeLock::Guard range = co_await inode->range.LockUnlessCancelled(0, RangeLock::kEnd, true);
  if (!range) co_return false;
  if (HasScopedData(*inode)) co_return true;
  DropData(*inode, 0, UINT64_MAX);  // of readers, whose leases may have ended
  std::lock_guard order(behind_mutex_);
  std::lock_guard lock(inode->mutex);
  // The file is noted before the lease is looked at: an end that is not seen here finds it.
  if (!MayTakeData(*inode) || !inode->covered->NoteData(inode->fid)) co_return false;
  inode->data_scope = inode->covered;
  co_return true;
}

// Nothing: it has to be written past the cache.
Task<StatusOr<std::optional<size_t>>> Core::WriteScoped(HandlePtr handle, uint64_t offset, Pieces pieces,
                                                        size_t size) {
  InodePtr inode = handle->inode;
  const bool append = (handle->flags & O_APPEND) != 0;
  if (OutgrowsMdt(*inode, append, offset, size)) CO_RETURN_IF_ERROR(co_await MoveOutThrough(inode));
  const bool taken = co_await TakeData(inode);
  while (taken) {
    if (append) {
      std::lock_guard lock(inode->mutex);
      offset = inode->Size();
    }
    const uint64_t end = append ? RangeLock::kEnd : offset + size;
    RangeLock::Guard range = co_await inode->range.LockUnlessCancelled(offset, end, true);
    if (!range) co_return GivenUp();
    {
      std::lock_guard lock(inode->mutex);
      if (inode->data_scope == nullptr) break;
      if (append && offset != inode->Size()) continue;
    }
    CO_ASSIGN_OR_RETURN(size_t written, co_await WriteCachedObjects(handle, offset, pieces, size));
    co_return std::optional<size_t>(written);
  }
  co_return std::optional<size_t>();
}

// --- giving up ---

// Errors are noted in the inode. Takes as long as the servers of the file's objects.
Task<void> Core::GiveDataUp(InodePtr inode) {
  if (!HasScopedData(*inode)) co_return;
  RangeLock::Guard range = co_await inode->range.Lock(0, RangeLock::kEnd, true);
  (void)co_await SendAll(inode);
  DropData(*inode, 0, UINT64_MAX);
  std::lock_guard lock(inode->mutex);
  inode->data_scope.reset();
}

// Gives up the data that is here under the lease of a directory, which has ended. A file whose servers are
// away must not keep the lease from those who want others: it gets a lease of its own, which goes back when
// its data has been sent. Returns these files, and those that had such a lease before: a file that has come
// here from another directory may be late under the lease of that one.
Task<std::set<Fid>> Core::GiveDataUpUnder(uint64_t epoch, ScopePtr scope) {
  std::set<Fid> late;
  if (options_.plant_kept_data) co_return late;
  { std::lock_guard order(behind_mutex_); }  // renames that found it good are done
  std::vector<Fid> noted = scope->with_data();
  std::vector<InodePtr> files;
  for (const Fid& fid : noted) {
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
  for (const InodePtr& inode : files) ends.push_back(InBackground(GiveDataUp(inode)));
  const Duration until = environment_.clock.Now() + kPatience;
  for (size_t i = 0; i < files.size(); ++i) {
    const Duration left = std::max<Duration>(until - environment_.clock.Now(), 0ns);
    (void)co_await ComesWithin(environment_.clock, left, ends[i]);
    if (!HasScopedData(*files[i])) continue;
    const bool leased = co_await LeaseLateData(epoch, files[i], ends[i]);
    if (leased) late.insert(files[i]->fid);
  }
  std::erase_if(noted, [&late](const Fid& fid) { return late.contains(fid); });
  scope->GaveUpData(noted);
  co_return late;
}

// Whether the file has a lease of its own now. False: the data has been given up after all, or the session is
// over. The MDS refuses the lease if the file lies in another directory by now; then that one's lease is what
// the file becomes late under, or it is on its way back, too, and this finds the file's own lease later.
Task<bool> Core::LeaseLateData(uint64_t epoch, InodePtr inode, OneShot<Unit> end) {
  for (;;) {
    proto::MetadataRequest request;
    *request.mutable_acquire_lease()->mutable_resource() = ToProto(inode->fid);
    request.mutable_acquire_lease()->set_mode(proto::LEASE_WRITE);
    Learning present = BeginLearning();
    Reply reply = co_await AskIn(epoch, std::move(request));
    if (reply.ok() && reply->lease().lease().mode() == proto::LEASE_WRITE) {
      const uint64_t lease = reply->lease().lease().id();
      {
        std::lock_guard lock(mutex_);
        std::lock_guard inode_lock(inode->mutex);
        given_up_.insert(lease);
        inode->leaving.push_back({lease, true});
      }
      Background(ReturnLateData(epoch, std::move(inode), lease, end, std::move(present)));
      co_return true;
    }
    LogWarning("file %s: its directory's lease waits for its data: %s", inode->fid.ToString(),
               std::string(reply.status().message()));
    const bool given_up = co_await ComesWithin(environment_.clock, kPatience, end);
    if (given_up) co_return false;
    std::lock_guard lock(inode->mutex);
    if (inode->HasLateData()) co_return true;
  }
}

Task<void> Core::ReturnLateData(uint64_t epoch, InodePtr inode, uint64_t lease, OneShot<Unit> end,
                                Learning present) {
  co_await end.Wait();
  std::vector<Fid> fids(1, inode->fid);
  co_await InvalidateKernel(std::move(fids));
  co_await ReturnPages(epoch, std::move(inode), lease, std::move(present));
}

}  // namespace nacre::client
