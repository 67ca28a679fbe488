// Which files' data is worked on here, in the cache and held back: those under WRITE leases of their
// directories, or of their own (docs/decisions/0063-data-under-leases.md, 0075-write-leases-of-files.md).
//
// A file is either worked on so by this client (Inode::data_scope) or past the cache. It changes from one to
// the other with all of Inode::range locked, so whoever has locked a part of that sees one way of working.
// The data is given up, that is sent and dropped, before the lease goes back, and before this client takes
// the file out from under it.
//
// Thread-safe. The arguments of the constructor must outlive it, and it the tasks in `background`. A wait for
// a server ends with its answer or with the session.
#pragma once

#include <functional>
#include <set>

#include "client/background.h"
#include "client/early_changes.h"
#include "client/file_data.h"
#include "client/held_leases.h"
#include "client/inode_table.h"
#include "client/kernel_cache.h"
#include "client/mds_calls.h"
#include "client/moving_out.h"
#include "client/own_data.h"
#include "client/write_behind.h"

namespace nacre::client {

class HeldData {
 public:
  // `give_back`: gives a lease of the file back under which nothing is open that the MDS does not know.
  using GiveBack = std::function<Task<void>(uint64_t epoch, InodePtr file, uint64_t lease, Learning present)>;

  HeldData(const Environment& environment, const Options& options, InodeTable& inodes, HeldLeases& leases,
           OwnData& own_data, EarlyChanges& early, MdsCalls& mds, FileData& data, MovingOut& moving_out,
           WriteBehind& write_behind, KernelCache& kernel, Background& background, GiveBack give_back);

  // Whether the file's data is worked on in the cache from now on. May ask the MDS for its content.
  Task<bool> Take(InodePtr inode);
  // The same if that can be without waiting.
  bool TryTake(const InodePtr& inode);

  // Sends the data, and works on the file past the cache from then on. Errors are noted in the inode. Takes
  // as long as the servers of the file's objects.
  Task<void> GiveUp(InodePtr inode);
  // Gives up the data that is here under a lease, which has ended; under SHARED that is what the MDS has not
  // been told. A file whose servers are away must not keep the lease from those who want others: it gets a
  // lease of its own, which goes back when its data has been sent. Returns these files, and those that had
  // such a lease before: a file that has come here from another directory may be late under the lease of that
  // one.
  Task<std::set<Fid>> GiveUpUnder(uint64_t epoch, ScopePtr scope);
  // A lease of the file has been asked back that nobody here knows: it may be one that GiveUpUnder has asked
  // for, which must not go back before the data has been sent. Returns when the MDS has said whether it is.
  Task<void> AwaitLateRequests(InodePtr inode, uint64_t lease);
  // A file's own lease goes back. OwnData forgets the file, unless it is worked on under another lease.
  void ForgetOwn(const Fid& fid);

 private:
  using Reply = MdsCalls::Reply;

  bool IsAloneWith(const Inode& inode) const;
  bool MayTake(const Inode& inode) const;
  bool Wants(Inode& inode, bool* known);
  bool TakeLocked(const InodePtr& inode);
  Task<void> TellShared(Fid file);
  Task<bool> LeaseLate(uint64_t epoch, InodePtr inode, OneShot<Unit> end);
  Task<StatusOr<uint64_t>> AskForLateLease(uint64_t epoch, InodePtr inode, uint64_t reclaims);
  Task<void> ReturnLate(uint64_t epoch, InodePtr inode, uint64_t lease, OneShot<Unit> end, Learning present);

  const Environment& environment_;
  const Options& options_;
  InodeTable& inodes_;
  HeldLeases& leases_;
  OwnData& own_data_;
  EarlyChanges& early_;
  MdsCalls& mds_;
  FileData& data_;
  MovingOut& moving_out_;
  WriteBehind& write_behind_;
  KernelCache& kernel_;
  Background& background_;
  const GiveBack give_back_;
};

}  // namespace nacre::client
