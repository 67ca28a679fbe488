#include "client/handles.h"

#include <utility>

#include "rpc/convert.h"

namespace nacre::client {
namespace {

// Returns when the MDS has answered the closes of the file that it was sent.
Task<void> AwaitCloses(InodePtr inode) {
  OneShot<Unit> answered;
  {
    std::lock_guard lock(inode->mutex);
    if (inode->closes_asked == 0) co_return;
    inode->close_waiters.push_back(answered);
  }
  co_await answered.Wait();
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

Handles::Handles(const Entrance& entrance, DataCache& cache, InodeTable& inodes, const HeldLeases& leases,
                 Session& session, MetadataQueue& queue)
    : entrance_(entrance),
      cache_(cache),
      inodes_(inodes),
      leases_(leases),
      session_(session),
      queue_(queue) {}

// --- opening ---

HandlePtr Handles::New(const Caller& caller, InodePtr inode, int flags) {
  auto handle = std::make_shared<FileHandle>(std::move(inode), flags, caller, entrance_.epoch());
  std::lock_guard lock(mutex_);
  handle->mount_errors_seen = errors_.Begin();
  return handle;
}

// The inode's mutex is held.
void Handles::CountLocked(FileHandle& handle, bool told) {
  Inode& inode = *handle.inode;
  ++inode.opens;
  if (handle.writable()) ++inode.write_opens;
  handle.told = told;
  if (told) ++inode.told;
  handle.errors_before = inode.errors.count();
  handle.errors_seen = inode.errors.Begin();
}

uint64_t Handles::CountTold(FileHandle& handle) {
  std::lock_guard lock(handle.inode->mutex);
  CountLocked(handle, true);
  return handle.inode->named;
}

// The task that ends the lease looks through untold_ afterwards.
bool Handles::CountUntold(FileHandle& handle, absl::FunctionRef<bool(const Inode&)> may) {
  Inode& inode = *handle.inode;
  std::lock_guard lock(mutex_);
  std::lock_guard inode_lock(inode.mutex);
  if (!may(inode)) return false;
  CountLocked(handle, false);
  inode.opened_under = inode.covered;
  untold_.insert(inode.fid);
  return true;
}

Task<void> Handles::TellAgain(InodePtr inode) {
  proto::MetadataRequest request;
  while (request.reclaim().opens_size() == 0) {
    co_await AwaitCloses(inode);
    std::lock_guard lock(inode->mutex);
    if (inode->closes_asked == 0) Name(*inode, request.mutable_reclaim()->add_opens());
  }
  (void)co_await session_.CallOnce(entrance_.epoch(), std::move(request));
}

// --- telling ---

bool Handles::IsUntold(const Inode& inode) {
  return inode.opened_under != nullptr && inode.opens > inode.told;
}

std::vector<InodePtr> Handles::UntoldFiles() {
  std::set<Fid> fids;
  {
    std::lock_guard lock(mutex_);
    fids = untold_;
  }
  std::vector<InodePtr> files;
  for (const Fid& fid : fids) {
    if (InodePtr inode = inodes_.Find(fid)) files.push_back(std::move(inode));
  }
  return files;
}

// The inode's mutex is held, and the MDS has answered every close that it was sent: one that it did behind
// this would take a handle off that is named here. Names the told handles outside of a whole Reclaim, and
// those whose closes will be sent all the same.
void Handles::Name(Inode& inode, proto::OpenFile* open) {
  inode.overtold = true;
  ++inode.named;
  *open->mutable_fid() = ToProto(inode.fid);
  open->set_count(inode.told + inode.closing);
  open->set_write(inode.write_opens > 0);
}

Task<void> Handles::Tell(uint64_t epoch, std::vector<InodePtr> files) {
  constexpr int kMost = 4000;  // in one message
  const uint64_t reclaims = leases_.reclaims();
  while (!files.empty() && epoch == entrance_.epoch()) {
    for (const InodePtr& inode : files) co_await AwaitCloses(inode);
    proto::MetadataRequest request;
    proto::Reclaim* part = request.mutable_reclaim();
    std::vector<InodePtr> left;
    for (const InodePtr& inode : files) {
      std::lock_guard lock(inode->mutex);
      if (!IsUntold(*inode)) continue;
      if (inode->closes_asked > 0 || part->opens_size() == kMost) {
        left.push_back(inode);
        continue;
      }
      inode->told = inode->opens;  // from here on a Reclaim names them, too
      Name(*inode, part->add_opens());
    }
    files = std::move(left);
    if (part->opens_size() == 0) continue;
    (void)co_await session_.CallOnce(epoch, std::move(request),
                                     [this, reclaims] { return leases_.reclaims() == reclaims; });
  }
}

Task<void> Handles::TellUnder(uint64_t epoch, uint64_t lease, ScopePtr scope) {
  std::vector<InodePtr> files;
  for (InodePtr& inode : UntoldFiles()) {
    std::lock_guard lock(inode->mutex);
    if (!IsUntold(*inode)) continue;
    const ScopePtr& under = inode->opened_under;
    if (under == scope || (lease != 0 && under->lease() == lease)) files.push_back(inode);
  }
  if (!files.empty()) co_await Tell(epoch, std::move(files));
}

// --- closing ---

Handles::Dropped Handles::Drop(FileHandle& handle) {
  Inode& inode = *handle.inode;
  Dropped dropped;
  bool untold = false;
  {
    std::lock_guard lock(inode.mutex);
    handle.released = true;
    --inode.opens;
    if (handle.writable()) --inode.write_opens;
    if (inode.write_opens == 0) inode.told_writes = 0;
    dropped.last_writer = inode.write_opens == 0 && inode.scope != nullptr && inode.scope->of_file();
    // Which of the handles the MDS was told of does not matter.
    bool one = inode.told > inode.opens;
    if (one) --inode.told;
    if (inode.overtold) one = false;
    untold = inode.opened_under != nullptr;
    const bool last = inode.opens == 0;
    const bool kept = last && inode.kept_open;
    if (kept || (last && inode.attr_known && inode.attr.nlink() == 0)) inode.gone = true;
    const bool all = kept || (last && inode.overtold);
    if (last) inode.kept_open = inode.overtold = false;
    if (last) dropped.pages_lease = inode.ForgetPages();
    dropped.file_gone = inode.gone;
    if (all || one) ++inode.closing;
    if (all || one) dropped.to_close = all ? 0 : 1;
  }
  if (!untold) return dropped;
  std::lock_guard lock(mutex_);
  std::lock_guard inode_lock(inode.mutex);
  if (!IsUntold(inode)) {
    inode.opened_under.reset();
    untold_.erase(inode.fid);
  }
  return dropped;
}

// Not sent, and not repeated, as it stands when the MDS has been told since what is held
// (HeldLeases::reclaims), or how often this file is open (Inode::named): those counts are right, but for a
// file that is not open here any more, which a Reclaim does not name. Count 0, all handles, is not sent once
// there are new ones: then it is up to the last of these.
Task<void> Handles::CloseAtMds(InodePtr inode, uint32_t count, bool write, uint64_t epoch) {
  const Fid fid = inode->fid;
  // Bytes on their way to the objects must not arrive after their destruction: they would bring them back.
  // Until they have arrived the file counts as open (`closing`), also for an MDS that asks.
  co_await cache_.WaitFlights(inode->data, 0, UINT64_MAX);
  uint64_t reclaims = 0, named = 0;
  {
    std::lock_guard lock(inode->mutex);
    reclaims = leases_.reclaims();
    named = inode->named;
    --inode->closing;
  }
  for (;;) {
    bool asked = false;
    proto::MetadataRequest request;
    *request.mutable_close()->mutable_fid() = ToProto(fid);
    request.mutable_close()->set_count(count);
    request.mutable_close()->set_write(write);
    co_await queue_.Drain();  // the removal that keeps it open, and what was written to it
    std::function<bool()> still = [this, reclaims, named, of = inode.get(), count, &asked] {
      std::lock_guard lock(of->mutex);
      if (count == 0 && of->told > 0) of->overtold = true;
      const bool outdated = count == 0 ? of->told > 0 : of->named != named;
      asked = !outdated && leases_.reclaims() == reclaims;
      if (asked) ++of->closes_asked;
      return asked;
    };
    auto reply = co_await session_.CallOnce(epoch, std::move(request), std::move(still));
    if (asked) CloseAnswered(*inode);
    if (reply.ok() || !IsRetryable(reply.status())) co_return;
    reclaims = leases_.reclaims();
    if (entrance_.stopped()) co_return;  // the end of the session closes it as well
    std::lock_guard lock(inode->mutex);
    if (inode->told > 0 || inode->kept_open) co_return;
    count = 0;
  }
}

void Handles::Forget() {
  std::lock_guard lock(mutex_);
  untold_.clear();
}

// --- errors ---

void Handles::NoteError(Status status) {
  std::lock_guard lock(mutex_);
  errors_.Note(std::move(status));
}

Status Handles::TakeError(FileHandle& handle) {
  std::lock_guard lock(mutex_);
  return errors_.Take(&handle.mount_errors_seen);
}

}  // namespace nacre::client
