// The kernel's pages: what it may keep of a file, and when it must forget. It may keep what leases of
// directories cover, as long as they are good, and what READ leases of single files do.
//
// Nothing here passes the gate for long, or at all: the kernel holds pages locked while it asks for their
// bytes, and an invalidation waits for those.
//
// Thread-safe. The state lies in the inodes (Inode::pages). The arguments of the constructor must outlive it.
// A wait ends with the MDS's answer, with the session, or with the kernel's answer.
#pragma once

#include <functional>
#include <vector>

#include "client/background.h"
#include "client/entrance.h"
#include "client/filesystem.h"
#include "client/held_leases.h"
#include "client/inode_table.h"
#include "client/kernel_cache.h"
#include "client/knowledge.h"
#include "client/session.h"

namespace nacre::client {

class KeptPages {
 public:
  // `work_on`: whether the file's data is worked on in the cache from now on, if that can be without waiting.
  KeptPages(const Environment& environment, InodeTable& inodes, const HeldLeases& leases,
            const Knowledge& knowledge, Entrance& entrance, Background& background, KernelCache& kernel,
            AskMds ask, std::function<bool(const InodePtr&)> work_on);

  // FileSystem's PagesFor, HoldPages and MayHavePages.
  KernelPages For(const HandlePtr& handle);
  Task<StatusOr<LockedPages>> Hold(HandlePtr handle, uint64_t offset, size_t size, PageUse use);
  static bool MayHave(const HandlePtr& handle);

  // Files of which there may be some.
  std::vector<Fid> Files();
  // Asks for READ of the file. It is not there afterwards if it was asked back meanwhile.
  Task<Status> Lease(uint64_t epoch, InodePtr inode);
  // Before the lease of its directory covers the file no more: the kernel's pages of it get one of their own,
  // or go.
  Task<void> Keep(uint64_t epoch, InodePtr inode);
  // Makes the kernel forget its pages of these files before a lease goes back that covers them. A page that
  // is being read stays locked as long as the server of its bytes is away, and that must not keep the lease
  // from those who want others of its files: such a file gets READ of its own, which goes back when somebody
  // wants to change the file and the page has gone.
  Task<void> ForgetUnderLease(uint64_t epoch, std::vector<Fid> fids);
  // Leases have run out. Each file by itself: pages that are being read stay locked until the MDS answers
  // again, and the kernel forgets them only then.
  void ForgetAll();

 private:
  Task<bool> LeaseLocked(uint64_t epoch, InodePtr inode);
  LockedPages NoteLocked(const InodePtr& inode, uint64_t begin, uint64_t end, PageUse use);
  struct Stretch {
    Fid fid;
    uint64_t begin, end;
  };
  std::vector<Stretch> ForgetUnlocked(const Fid& fid);
  void Forget(const Stretch& stretch);

  const Environment& environment_;
  InodeTable& inodes_;
  const HeldLeases& leases_;
  const Knowledge& knowledge_;
  Entrance& entrance_;
  Background& background_;
  KernelCache& kernel_;
  const AskMds ask_;
  const std::function<bool(const InodePtr&)> work_on_;
};

}  // namespace nacre::client
