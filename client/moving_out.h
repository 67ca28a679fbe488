// Moves files out of the MDT, which keeps small ones, to objects: those that outgrow it while they are
// written (docs/decisions/0079-outgrowing-without-waiting.md).
//
// The MDS decides which objects a file gets. A write does not wait for that if the file is new and there is
// space for its bytes wherever they may go: they stay in memory with the others of the file, which is an
// inline one here until the MDS has answered (Inode::outgrowing). Then they become cached data of objects,
// with all of the file's range locked, by whoever has that next. A task that sends a file, or needs its
// objects, waits for this first (LockMeta, LockWhole).
//
// If the MDS is away, so are the bytes' objects, and they wait as what is held back of other files does:
// fsync waits, the end of the session says that they are lost. At most as many bytes wait so as the OST with
// the smallest grant has granted.
//
// Thread-safe. The state lies in the inodes. The arguments of the constructor must outlive it, except that
// the queue, whose answers come in here, has to go first. A wait for the MDS ends with its answer or with the
// session.
#pragma once

#include <map>
#include <memory>

#include "client/background.h"
#include "client/dirty_files.h"
#include "client/early_changes.h"
#include "client/file_data.h"
#include "client/mds_calls.h"
#include "client/mdt_room.h"
#include "client/metadata_queue.h"
#include "client/telling.h"

namespace nacre::client {

class MovingOut {
 public:
  MovingOut(const Entrance& entrance, Session& session, EarlyChanges& early, MdsCalls& mds,
            MetadataQueue& queue, Telling& telling, FileData& data, Targets& targets, MdtRoom& room,
            DirtyFiles& dirty, Background& background);

  // Whether bytes up to `end` may be kept as inline ones without waiting. All of the file is locked, and its
  // bytes are known.
  bool TryOutgrow(const InodePtr& inode, uint64_t end);
  // Makes cached data of objects of what is cached of the file. All of it is locked.
  Task<Status> MoveOut(InodePtr inode);
  // Moves a file out of which nothing is worked on here, so that it can be written to its objects.
  Task<Status> MoveOutThrough(InodePtr inode);

  // --- for those who have locked nothing of the file ---

  // Returns when it is an inline one that the MDT can have, or has objects.
  Task<void> Await(InodePtr inode, MetadataQueue::Hurry hurry);
  // Locks all of the file, which does not outgrow the MDT then. Empty: nobody waits for the operation any
  // more.
  Task<RangeLock::Guard> LockWhole(InodePtr inode, MayGiveUp may);
  // Locks inode->meta, with all that was written before the call where it can be sent from.
  Task<AsyncMutex::Guard> LockMeta(InodePtr inode, MetadataQueue::Hurry hurry);

 private:
  using Reply = MdsCalls::Reply;

  bool TryPush(const InodePtr& inode, std::shared_ptr<Outgrowing> outgrowing);
  Task<Status> Finish(InodePtr inode, MayGiveUp may);
  Task<Status> WriteOutgrown(InodePtr inode, std::map<OstIndex, uint64_t>* space);
  Task<void> End(InodePtr inode, std::shared_ptr<Outgrowing> outgrowing);

  const Entrance& entrance_;
  Session& session_;
  EarlyChanges& early_;
  MdsCalls& mds_;
  MetadataQueue& queue_;
  Telling& telling_;
  FileData& data_;
  Targets& targets_;
  MdtRoom& room_;
  DirtyFiles& dirty_;
  Background& background_;
};

}  // namespace nacre::client
