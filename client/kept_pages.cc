#include "client/kept_pages.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <iterator>

#include "client/within.h"
#include "rpc/convert.h"

namespace nacre::client {
namespace {

constexpr Duration kPagesPatience = 1s;  // of who wants a directory, for locked pages of a file in it

// Waits for the writes of these pages that have come from the kernel before. The kernel puts the bytes of a
// write into pages that it has and unlocks them before it sends the write; if they are invalidated then,
// whoever reads has them filled anew. They must not get what was there before the write, which does not fill
// them again.
Task<Status> AwaitPageWrites(InodePtr inode, uint64_t begin, uint64_t end) {
  for (;;) {
    OneShot<Unit> ended;
    {
      std::lock_guard lock(inode->mutex);
      auto& locked = inode->pages.locked;
      auto it = std::ranges::find_if(locked, [&](const auto& one) {
        return one.second.writes && one.first < end && begin < one.second.end;
      });
      if (it == locked.end()) co_return OkStatus();
      it->second.waiters.push_back(ended);
    }
    CO_RETURN_IF_ERROR(co_await WaitUnlessCancelled(ended));
  }
}

}  // namespace

KeptPages::KeptPages(const Environment& environment, InodeTable& inodes, const HeldLeases& leases,
                     const Knowledge& knowledge, Entrance& entrance, Background& background,
                     KernelCache& kernel, AskMds ask, std::function<bool(const InodePtr&)> work_on)
    : environment_(environment),
      inodes_(inodes),
      leases_(leases),
      knowledge_(knowledge),
      entrance_(entrance),
      background_(background),
      kernel_(kernel),
      ask_(std::move(ask)),
      work_on_(std::move(work_on)) {}

// O_APPEND goes past the pages: while others append as well the kernel does not know at which offset its
// bytes end up.
KernelPages KeptPages::For(const HandlePtr& handle) {
  if ((handle->flags & (O_DIRECT | O_APPEND)) != 0) return KernelPages::kNone;
  // Else a write would take the file's cover away for as long as it is under way, and each page that is
  // filled meanwhile would need a lease of its own.
  if (handle->writable() && (!handle->readable() || !work_on_(handle->inode))) return KernelPages::kNone;
  Inode& inode = *handle->inode;
  std::lock_guard lock(inode.mutex);
  if (handle->writable() && inode.data_scope != inode.covered) return KernelPages::kNone;
  if (!knowledge_.Trusts(inode) || !S_ISREG(inode.attr.mode())) return KernelPages::kNone;
  if (!inode.covered->NotePages(inode.fid)) return KernelPages::kNone;
  inode.pages.some = true;
  return std::exchange(inode.pages.under, inode.covered) == inode.covered ? KernelPages::kKept
                                                                          : KernelPages::kNew;
}

Task<StatusOr<LockedPages>> KeptPages::Hold(HandlePtr handle, uint64_t offset, size_t size, PageUse use) {
  Inode& inode = *handle->inode;
  if (use == PageUse::kFill)
    CO_RETURN_IF_ERROR(co_await AwaitPageWrites(handle->inode, offset, offset + size));
  LockedPages locked = NoteLocked(handle->inode, offset, offset + size, use);
  for (;;) {
    if (!entrance_.LeasesGood()) CO_RETURN_IF_ERROR(co_await entrance_.AwaitGoodLeases(handle));
    CO_RETURN_IF_ERROR(entrance_.Check(*handle));
    {
      std::lock_guard lock(inode.mutex);
      inode.pages.some = true;
      if (inode.pages.lease != 0) co_return locked;
      if (knowledge_.Trusts(inode) && inode.pages.under == inode.covered &&
          inode.covered->NotePages(inode.fid))
        co_return locked;
    }
    CO_RETURN_IF_ERROR(co_await Lease(handle->epoch, handle->inode));
  }
}

Task<Status> KeptPages::Lease(uint64_t epoch, InodePtr inode) {
  uint64_t recalls = 0, held = 0;
  {
    std::lock_guard lock(inode->mutex);
    recalls = inode->pages.recalls;
    held = leases_.reclaims();
  }
  proto::MetadataRequest request;
  *request.mutable_acquire_lease()->mutable_resource() = ToProto(inode->fid);
  request.mutable_acquire_lease()->set_mode(proto::LEASE_READ);
  CO_ASSIGN_OR_RETURN(proto::MetadataReply reply, co_await ask_(epoch, std::move(request)));
  std::lock_guard lock(inode->mutex);
  if (inode->pages.recalls != recalls) co_return OkStatus();  // it may be this one
  if (leases_.reclaims() != held) co_return OkStatus();       // a Reclaim that did not name it has ended it
  HeldLeases::TakeRead(*inode, reply.lease().lease().id());
  co_return OkStatus();
}

Task<void> KeptPages::Keep(uint64_t epoch, InodePtr inode) {
  for (int i = 0; i < kRaces; ++i) {
    {
      std::lock_guard lock(inode->mutex);
      if (!inode->PagesNeedCover()) co_return;
    }
    Status leased = co_await Lease(epoch, inode);
    if (!leased.ok()) break;
  }
  std::vector<Fid> fids(1, inode->fid);
  co_await kernel_.ForgetAll(std::move(fids));
}

Task<void> KeptPages::ForgetUnderLease(uint64_t epoch, std::vector<Fid> fids) {
  std::vector<OneShot<Unit>> ends;
  for (const Fid& fid : fids) ends.push_back(background_.Start(kernel_.Forget(fid, 0, UINT64_MAX)));
  const Duration until = environment_.clock.Now() + kPagesPatience;
  for (size_t i = 0; i < fids.size(); ++i) {
    const Duration left = std::max<Duration>(until - environment_.clock.Now(), 0ns);
    const bool gone = co_await ComesWithin(environment_.clock, left, ends[i]);
    if (gone) continue;
    const bool leased = co_await LeaseLocked(epoch, inodes_.Get(fids[i]));
    if (!leased) co_await ends[i].Wait();
  }
}

// Whether the file has READ of its own, or had that or WRITE for late data, and gives it back when the kernel
// has forgotten the pages.
Task<bool> KeptPages::LeaseLocked(uint64_t epoch, InodePtr inode) {
  for (int i = 0; i < kRaces; ++i) {
    {
      std::lock_guard lock(inode->mutex);
      const bool leaves = std::ranges::any_of(inode->leaving, [](const Inode::Leaving& one) {
        return one.late || one.mode == proto::LEASE_READ;
      });
      if (inode->pages.lease != 0 || leaves) co_return true;
    }
    Status leased = co_await Lease(epoch, inode);
    if (!leased.ok()) break;
  }
  co_return false;
}

// An invalidation that is under way waits for these pages before it comes to those behind them. When leases
// have run out, that may be for long: those behind them go now.
LockedPages KeptPages::NoteLocked(const InodePtr& inode, uint64_t begin, uint64_t end, PageUse use) {
  std::multimap<uint64_t, Inode::Pages::Locked>::iterator at;
  {
    std::lock_guard lock(inode->mutex);
    at = inode->pages.locked.emplace(begin, Inode::Pages::Locked{end, use == PageUse::kWrite, {}});
  }
  if (!entrance_.LeasesGood()) background_.Start(kernel_.Forget(inode->fid, end, UINT64_MAX));
  return {inode.get(), [inode, at](void*) {
            std::vector<OneShot<Unit>> waiters;
            {
              std::lock_guard lock(inode->mutex);
              waiters = std::move(at->second.waiters);
              inode->pages.locked.erase(at);
            }
            for (const OneShot<Unit>& waiter : waiters) waiter.Set({});
          }};
}

// Makes the kernel forget the pages of the file that it does not wait for. Returns the others.
std::vector<KeptPages::Stretch> KeptPages::ForgetUnlocked(const Fid& fid) {
  const InodePtr inode = inodes_.Get(fid);
  std::vector<Stretch> locked;
  uint64_t at = 0;
  std::vector<Stretch> unlocked;
  {
    std::lock_guard lock(inode->mutex);
    for (const auto& [begin, one] : inode->pages.locked) {
      if (begin > at) unlocked.push_back({fid, at, begin});
      if (one.end > at) locked.push_back({fid, std::max(begin, at), one.end});
      at = std::max(at, one.end);
    }
  }
  unlocked.push_back({fid, at, UINT64_MAX});
  for (const Stretch& stretch : unlocked) Forget(stretch);
  return locked;
}

void KeptPages::Forget(const Stretch& stretch) {
  background_.Start(kernel_.Forget(stretch.fid, stretch.begin, stretch.end));
}

// What the kernel waits for, which may be for long, comes behind all of the rest: each of these may take a
// thread as long as a server is away.
void KeptPages::ForgetAll() {
  std::vector<Stretch> locked;
  for (const Fid& fid : Files()) std::ranges::move(ForgetUnlocked(fid), std::back_inserter(locked));
  for (const Stretch& stretch : locked) Forget(stretch);
}

bool KeptPages::MayHave(const HandlePtr& handle) {
  std::lock_guard lock(handle->inode->mutex);
  return handle->inode->pages.some;
}

std::vector<Fid> KeptPages::Files() {
  std::vector<Fid> fids;
  for (const InodePtr& inode : inodes_.All()) {
    std::lock_guard lock(inode->mutex);
    if (inode->pages.some) fids.push_back(inode->fid);
  }
  return fids;
}

}  // namespace nacre::client
