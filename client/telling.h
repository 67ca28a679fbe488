// Tells the MDS of a file what has become of its bytes: inline ones, sizes, times. Under WRITE that takes its
// place among the changes that are answered early (early_changes.h), so that the MDS comes to it after the
// file's creation and before a rename that follows.
//
// Thread-safe. The state lies in the inodes (Inode::pending, inline_dirty_begin, …). The arguments of the
// constructor must outlive it, except that the queue, whose answers come in here, has to go first. A call
// waits for the MDS as MdsCalls does.
#pragma once

#include <memory>

#include "client/background.h"
#include "client/early_changes.h"
#include "client/mds_calls.h"
#include "client/mdt_room.h"
#include "common/range_lock.h"

namespace nacre::client {

class Telling {
 public:
  enum class Told { kNothing, kOnItsWay, kAsk };

  Telling(const Environment& environment, const Options& options, const Entrance& entrance,
          EarlyChanges& early, MdsCalls& mds, MetadataQueue& queue, MdtRoom& room, Background& background);

  // --- inline bytes ---

  // Pushes all that is dirty of an inline file, and the truncation before it, behind what was answered early
  // before. `answer` is set when the MDS has come to it. kAsk: it has to be asked (SendInline).
  Told TryPushInline(const InodePtr& inode, OneShot<Status> answer);
  // Returns when the MDS has all that was dirty of an inline file. inode->meta is held.
  Task<Status> SendInline(InodePtr inode);
  // Tells of a truncation that is held back, before what needs the MDS to know of it. The file is locked
  // against writes.
  Task<Status> TellCut(InodePtr inode);

  // --- sizes and times ---

  // Tells size, times and blocks of what objects have by now.
  Task<Status> SendPending(InodePtr inode);
  // Tells `sent` as it is. `range`, if not null: is released as soon as nobody takes the file's data before
  // the answer. ESTALE: the file has other objects by now.
  Task<Status> TellSize(InodePtr inode, LayoutPtr layout, Pending sent, RangeLock::Guard* range = nullptr);

  // Whether the MDS may be told later what was written to these objects (`sent`): the file is shared, and
  // still has them. Then it waits in Inode::pending; the caller lists the file as dirty. Not while an append
  // is under way: it may give the file's layout a new generation, and the MDS refuses what was written by the
  // old one.
  bool TryTellLater(const InodePtr& inode, const LayoutPtr& layout, const Pending& sent);

  // --- what else follows from writing ---

  // Whether WRITE of the file is to be asked for, as the MDS is about to be told of a write
  // (docs/decisions/0075-write-leases-of-files.md). Counts these: files that are written once and closed
  // would have one message more. Where several mounts change a directory nobody has its lease for long, and
  // each write to a file in it tells the MDS; under WRITE of the file it is worked on as under that of the
  // directory. It goes back with the last handle by which the file could be written to, so that others who
  // look at it afterwards recall nothing.
  bool WantsFileLease(Inode& inode);
  // Has objects dropped, in the background, that the file has left: a write may have made them anew after
  // they had been destroyed.
  void DropObjects(const InodePtr& inode, LayoutPtr layout);

 private:
  using Reply = MdsCalls::Reply;

  Status EndInline(const InodePtr& inode, const Reply& reply);
  bool TryTellEarly(const InodePtr& inode, const proto::MetadataRequest& request);
  void PushWrite(const InodePtr& inode, uint64_t change, proto::MetadataRequest request);
  Task<void> AskToDrop(Fid fid, LayoutPtr layout);

  const Environment& environment_;
  const Options& options_;
  const Entrance& entrance_;
  EarlyChanges& early_;
  MdsCalls& mds_;
  MetadataQueue& queue_;
  MdtRoom& room_;
  Background& background_;
};

}  // namespace nacre::client
