// The kernel's pages: what it may keep of a file, and when it must forget. Under the filesystem lease
// everything; without it what READ leases of single files cover.
//
// Nothing here passes the gate for long, or at all: the kernel holds pages locked while it asks for their
// bytes, and an invalidation waits for those.
#include <fcntl.h>

#include <algorithm>

#include "client/core.h"
#include "common/log.h"

namespace nacre::client {

// O_APPEND goes past the pages: while others append as well the kernel does not know at which offset its
// bytes end up.
KernelPages Core::PagesFor(const HandlePtr& handle) {
  if ((handle->flags & (O_DIRECT | O_APPEND)) != 0) return KernelPages::kNone;
  Inode& inode = *handle->inode;
  std::lock_guard lock(inode.mutex);
  if (!cached()) return KernelPages::kNone;
  inode.pages.some = true;
  const uint64_t now = leases_taken_.load();
  return std::exchange(inode.pages.since, now) == now ? KernelPages::kKept : KernelPages::kNew;
}

Task<Status> Core::HoldPages(HandlePtr handle) {
  Inode& inode = *handle->inode;
  for (;;) {
    if (!LeasesGood()) CO_RETURN_IF_ERROR(co_await AwaitStillGood(handle));
    CO_RETURN_IF_ERROR(CheckHandle(*handle));
    uint64_t recalls = 0, held = 0;
    {
      std::lock_guard lock(inode.mutex);
      inode.pages.some = true;
      if (cached() || inode.pages.lease != 0) co_return OkStatus();
      recalls = inode.pages.recalls;
      held = times_held_;
    }
    proto::MetadataRequest request;
    *request.mutable_acquire_lease()->mutable_resource() = ToProto(inode.fid);
    request.mutable_acquire_lease()->set_mode(proto::LEASE_READ);
    CO_ASSIGN_OR_RETURN(proto::MetadataReply reply, co_await AskIn(handle->epoch, std::move(request)));
    std::lock_guard lock(inode.mutex);
    if (inode.pages.recalls != recalls) continue;  // it may be this one that has been asked back meanwhile
    if (times_held_ != held) continue;             // a Reclaim that did not name it has ended it
    inode.pages.lease = reply.lease().lease().id();
  }
}

bool Core::MayHavePages(const HandlePtr& handle) {
  std::lock_guard lock(handle->inode->mutex);
  return handle->inode->pages.some;
}

// The last handle is gone: whoever opens the file next makes the kernel drop the pages, unless PagesFor knows
// better. inode.mutex is held. 0: there is no lease to return.
uint64_t Core::ForgetPages(Inode& inode) {
  inode.pages.some = false;
  uint64_t lease = std::exchange(inode.pages.lease, 0);
  if (lease == 0) return 0;
  ++inode.pages.recalls;
  inode.leaving.push_back(lease);
  return lease;
}

std::vector<Fid> Core::WithPages() {
  std::vector<Fid> fids;
  for (const InodePtr& inode : inodes_->All()) {
    std::lock_guard lock(inode->mutex);
    if (inode->pages.some) fids.push_back(inode->fid);
  }
  return fids;
}

Task<void> Core::InvalidateKernel(std::vector<Fid> fids) {
  Invalidation invalidation;
  {
    std::lock_guard lock(mutex_);
    invalidation = invalidation_;
  }
  if (!invalidation.data_and_attributes) co_return;
  for (const Fid& fid : fids) co_await invalidation.data_and_attributes(fid);
}

}  // namespace nacre::client
