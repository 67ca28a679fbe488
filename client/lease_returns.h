// Gives leases back: those that the MDS asks for, and those that this client needs no longer. Whatever
// depends on a lease goes first: data that is held back under it, changes that were answered early, the
// kernel's pages and what it was promised, handles of which the MDS does not know.
//
// Thread-safe. The arguments of the constructor must outlive it, and it the tasks in `background`. A return
// takes as long as the servers of what was held back, but for files that get leases of their own then
// (HeldData::GiveUpUnder), and ends with the session.
#pragma once

#include "client/background.h"
#include "client/early_changes.h"
#include "client/entrance.h"
#include "client/handles.h"
#include "client/held_data.h"
#include "client/held_leases.h"
#include "client/inode_table.h"
#include "client/kept_pages.h"
#include "client/kernel_cache.h"
#include "client/mds_calls.h"
#include "client/metadata_queue.h"

namespace nacre::client {

class LeaseReturns {
 public:
  LeaseReturns(const Environment& environment, const Options& options, const Entrance& entrance,
               InodeTable& inodes, HeldLeases& leases, EarlyChanges& early, MdsCalls& mds,
               MetadataQueue& queue, Handles& handles, KeptPages& pages, HeldData& data, KernelCache& kernel,
               Background& background);

  // The MDS asks for a lease of this inode; of WRITE of a directory READ is kept if `keeps_read`
  // says that it may.
  void Begin(uint64_t epoch, Fid fid, uint64_t lease_id, bool keeps_read);
  // The last handle has gone by which the file could be written to: its own lease goes back, if there is one,
  // in the background. Nobody waits for the data that is held back.
  void ReturnOfFile(const InodePtr& inode);
  // Returns a lease of a directory, or WRITE of a file (`scope`, which has ended), or one of what is not
  // known any more. `lease_id` 0: the MDS names it with the answer to the directory's making, which is
  // awaited. `present`: from before it was noted as given up; until the release is answered the lease may
  // come once more. `hurry`: kNo where the client returns it by itself, as of each directory that rm -r
  // removes; nobody waits for that. `keeps_read`: whoever wants the lease only reads.
  Task<void> Return(uint64_t epoch, InodePtr inode, uint64_t lease_id, ScopePtr scope, Learning present,
                    MetadataQueue::Hurry hurry, bool keeps_read = false);
  // Returns a lease under which nothing is open that the MDS does not know.
  Task<void> ReturnPages(uint64_t epoch, InodePtr inode, uint64_t lease_id, Learning present);

 private:
  Task<void> GiveUp(uint64_t epoch, Fid fid, uint64_t lease_id, bool keeps_read);
  Task<void> ForgetPages(InodePtr inode, uint64_t lease_id);
  Task<void> AwaitTold(const Scope& scope, MetadataQueue::Hurry hurry);
  Task<bool> KeepReading(uint64_t epoch, InodePtr directory, uint64_t lease_id);
  Task<void> AwaitPromises(const InodePtr& inode, const ScopePtr& scope);
  Task<void> Release(uint64_t epoch, uint64_t lease_id);

  const Environment& environment_;
  const Options& options_;
  const Entrance& entrance_;
  InodeTable& inodes_;
  HeldLeases& leases_;
  EarlyChanges& early_;
  MdsCalls& mds_;
  MetadataQueue& queue_;
  Handles& handles_;
  KeptPages& pages_;
  HeldData& data_;
  KernelCache& kernel_;
  Background& background_;
};

}  // namespace nacre::client
