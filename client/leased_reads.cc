// Reading out of the cache under READ of a file.
//
// Where several mounts change a directory nobody has its lease, and each read past the cache asks the MDS for
// the file's size first. The second read from a handle takes READ of the file instead, as for the kernel's
// pages (kept_pages.h): until it is asked back nobody else's write, truncation or append is answered, so
// size, layout and bytes stay what they are, and reading ahead is worth it.
//
// The cache may still be filled by somebody who began under the lease when that has ended. So what it has is
// trusted only from one lease on (Inode::Pages::content), which begins with nothing, with all of
// Inode::range locked.
#include <fcntl.h>
#include <sys/stat.h>

#include "client/core.h"

namespace nacre::client {
namespace {

// A file is not leased again so soon after others have changed it.
constexpr Duration kPeace = 5s;

}  // namespace

bool Core::WantsContentLease(FileHandle& handle) {
  if (!options_.caching || !entrance_.LeasesGood() || (handle.flags & O_DIRECT) != 0) return false;
  {
    std::lock_guard lock(handle.reading.mutex);
    if (++handle.reading.past_cache <= 1) return false;
  }
  const Inode& inode = *handle.inode;
  std::lock_guard lock(handle.inode->mutex);
  if (inode.data_scope != nullptr || inode.ContentLeased() || inode.Inline()) return false;
  if (inode.IsShared()) return false;  // READ would end that for all
  return inode.pages.recalled == 0ns || environment_.clock.Coarse() - inode.pages.recalled > kPeace;
}

// The read goes past the cache if it does not come to that.
Task<void> Core::LeaseContent(HandlePtr handle) {
  const InodePtr& inode = handle->inode;
  RangeLock::Guard range = inode->range.TryLock(0, RangeLock::kEnd, true);
  if (!range) co_return;
  uint64_t recalls = 0;
  bool leased = false;
  {
    std::lock_guard lock(inode->mutex);
    if (inode->data_scope != nullptr || inode->ContentLeased() || inode->appending > 0) co_return;
    recalls = inode->pages.recalls;
    leased = inode->pages.lease != 0;
  }
  if (!leased) {
    Status taken = co_await pages_->Lease(handle->epoch, inode);
    if (!taken.ok()) co_return;
  }
  data_->Drop(*inode, 0, UINT64_MAX);
  Caller system;
  auto known = co_await mds_->Refresh(system, inode->fid, true);
  std::lock_guard lock(inode->mutex);
  const bool same = inode->pages.recalls == recalls && inode->pages.lease != 0;
  if (known.ok() && same && inode->CurrentContent()) inode->pages.content = inode->pages.lease;
}

}  // namespace nacre::client
