// Making an inode with its first entry: what mknod and create share. Not thread-safe; one coroutine uses it.
#pragma once

#include "server/metadata/mds.h"

namespace nacre::mds {

struct NewInode {
  Fid parent;
  std::string name;
  uint32_t mode = 0;
  uint64_t rdev = 0;
  std::string target;            // of a symlink
  Fid fid;                       // none: Prepare takes one
  uint64_t object_sequence = 0;  // set by Prepare
};

// Takes the numbers that it needs. Before the lock, since it may wait for the store. EPERM for a FID that is
// none of the session's own.
Task<Status> Prepare(const Op& op, NewInode* wanted);

// With the parent locked: EEXIST for a name that is taken (before any question of permission to write, as
// Linux does), EACCES, ENOENT in a removed directory. A FID that was asked for is locked, too.
Status CheckNew(const Op& op, Transaction* transaction, const NewInode& wanted);

// The inode, its entry, the parent's change; fills the reply's attributes and, for a regular file, its
// layout.
StatusOr<Inode*> Make(const Op& op, Transaction* transaction, const NewInode& wanted, proto::Entry* reply);

}  // namespace nacre::mds
