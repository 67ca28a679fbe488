#include "client/power_losses.h"

#include <cerrno>

#include "common/log.h"

namespace nacre::client {

PowerLosses::PowerLosses(const Environment& environment, InodeTable& inodes, Entrance& entrance,
                         Durability& durability, KeptPages& pages, MdsCalls& mds, FileData& data,
                         MovingOut& moving_out, WriteBehind& write_behind, KernelCache& kernel,
                         Background& background)
    : environment_(environment),
      inodes_(inodes),
      entrance_(entrance),
      durability_(durability),
      pages_(pages),
      mds_(mds),
      data_(data),
      moving_out_(moving_out),
      write_behind_(write_behind),
      kernel_(kernel),
      background_(background) {}

// --- of an OST ---

// As soon as it is known, so that nobody goes on with a cache that says what nobody else can read. Data that
// is cached under leases may be what other clients had written there and not synced.
void PowerLosses::OnOst(OstIndex ost, uint64_t losses) {
  for (const InodePtr& inode : inodes_.All()) {
    durability_.CheckLosses(inode, ost, losses);
    bool shared = false;
    {
      std::lock_guard lock(inode->mutex);
      shared = inode->data_scope != nullptr || inode->ContentLeased();
      inode->pages.content = 0;
    }
    if (shared) background_.Start(DropLost(inode, false));
  }
}

Status PowerLosses::NoteLost(const InodePtr& inode, OstIndex ost) {
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
Task<void> PowerLosses::DropLost(InodePtr inode, bool of_mdt) {
  {
    Gate::Pass pass = co_await entrance_.gate().Enter();
    RangeLock::Guard range = co_await moving_out_.LockWhole(inode, MayGiveUp::kNo);
    if (of_mdt)
      (void)co_await write_behind_.SendAll(inode);  // errors are noted in the inode
    else
      (void)co_await data_.Send(inode, 0, UINT64_MAX);
    data_.Drop(*inode, 0, UINT64_MAX);
    if (of_mdt) {
      std::lock_guard lock(inode->mutex);
      inode->Forget();  // what it took to send that, too
    }
  }
  std::vector<Fid> fids(1, inode->fid);
  co_await kernel_.ForgetAll(std::move(fids));
}

// --- of the MDT ---

void PowerLosses::OnMdt(uint64_t synced) { background_.Start(ForgetChanges(synced)); }

// The MDT has lost power: of what was changed since the last sync, some may be gone; nothing that is
// remembered from before is certain, nor what the cache and the kernel have of a file: it may have other
// objects.
Task<void> PowerLosses::ForgetChanges(uint64_t synced) {
  co_await entrance_.gate().CloseBetween(environment_.clock);
  std::vector<Fid> paged = pages_.Files();
  mds_.EndScopes();
  std::vector<InodePtr> unsent;
  for (const InodePtr& inode : inodes_.All()) {
    if (HoldsBack(*inode) || inode->data_cache->InFlight(inode->data))
      unsent.push_back(inode);
    else
      data_.Drop(*inode, 0, UINT64_MAX);
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
  inodes_.Forget();
  entrance_.gate().Open();
  for (const InodePtr& inode : unsent) background_.Start(DropLost(inode, true));
  co_await kernel_.ForgetAll(std::move(paged));
}

}  // namespace nacre::client
