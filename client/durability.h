// Knows what is on stable storage: which OSTs hold bytes of a file that were not synced, how far the MDT is
// synced; and makes the two waits of which fsync, fdatasync and O_DSYNC consist.
//
// The state of a file's objects is in its Inode (`unsynced`, `unsynced_whole`, guarded by Inode::mutex); the
// MDT's is here. Thread-safe. `epoch`: Session::epoch. SyncObjects and SyncMutations wait for their servers
// as Targets and Session do. They fail with the server's error, and SyncObjects with EIO when an OST has lost
// power in between.
#pragma once

#include <atomic>
#include <functional>

#include "client/inode.h"
#include "client/metadata_queue.h"
#include "client/object_io.h"
#include "client/session.h"
#include "client/targets.h"

namespace nacre::client {

class Durability {
 public:
  // Told when an OST has lost power before what was written there of the file was synced; returns the error
  // that it has noted in the inode.
  using OnLost = std::function<Status(const InodePtr&, OstIndex)>;

  Durability(Targets& targets, ObjectIo& io, MetadataQueue& queue, Session& session, OnLost on_lost);

  // OSTs have taken bytes of the file; `osts` is what they said then. Every write must come here, or fsync
  // does not know of it.
  void Written(const InodePtr& inode, const Losses& osts);
  // The OST says that it has lost power so many times.
  void CheckLosses(const InodePtr& inode, OstIndex ost, uint64_t losses);

  // Returns when all that was written to the file's objects before the call is on stable storage. `shared`:
  // other clients may have written to them, too. One sync of a file at a time: whoever comes meanwhile waits,
  // since what it has to see synced is in the hands of the one before it.
  Task<Status> SyncObjects(uint64_t epoch, InodePtr inode, bool shared);

  // Returns when the MDT has on stable storage every mutation that had been answered before the call.
  // `number`: of the last one that matters (Inode::mutation), which may be synced already; `shared`: other
  // clients' changes matter, too.
  Task<Status> SyncMutations(uint64_t epoch, uint64_t number, bool shared);

  // Mutations below this number (Session::mutations) are on the MDT's stable storage.
  uint64_t synced() const { return synced_; }
  // The session has ended: the next one numbers its mutations anew.
  void Reset() { synced_ = 0; }

 private:
  Status Compare(const InodePtr& inode, const Losses& written, const Losses& now);

  Targets& targets_;
  ObjectIo& io_;
  MetadataQueue& queue_;
  Session& session_;
  const OnLost on_lost_;
  std::atomic<uint64_t> synced_{0};
};

}  // namespace nacre::client
