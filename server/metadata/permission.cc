#include "server/metadata/permission.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

namespace nacre::mds {

bool Caller::InGroup(uint32_t group) const {
  return gid == group || std::find(groups.begin(), groups.end(), group) != groups.end();
}

Caller FromProto(const proto::Credentials& credentials) {
  return {credentials.uid(), credentials.gid(), {credentials.groups().begin(), credentials.groups().end()}};
}

Status CheckAccess(const Caller& caller, const Inode& inode, uint32_t want) {
  uint32_t granted = inode.mode & 7;
  if (caller.IsRoot()) {
    bool may_execute = S_ISDIR(inode.mode) || (inode.mode & 0111) != 0;
    granted = kMayRead | kMayWrite | (may_execute ? kMayExecute : 0);
  } else if (caller.uid == inode.uid) {
    granted = (inode.mode >> 6) & 7;
  } else if (caller.InGroup(inode.gid)) {
    granted = (inode.mode >> 3) & 7;
  }
  if ((want & ~granted) == 0) return OkStatus();
  return ErrnoError(EACCES,
                    absl::StrFormat("user %d may not do this to %s: mode %o, owner %d, group %d", caller.uid,
                                    inode.fid.ToString(), inode.mode & 07777, inode.uid, inode.gid));
}

Status CheckOwner(const Caller& caller, const Inode& inode) {
  if (caller.IsRoot() || caller.uid == inode.uid) return OkStatus();
  return ErrnoError(EPERM, absl::StrFormat("user %d does not own %s (user %d does)", caller.uid,
                                           inode.fid.ToString(), inode.uid));
}

Status CheckDirectoryChange(const Caller& caller, const Inode& directory) {
  return CheckAccess(caller, directory, kMayWrite | kMayExecute);
}

Status CheckRemoval(const Caller& caller, const Inode& directory, const Inode& victim) {
  RETURN_IF_ERROR(CheckDirectoryChange(caller, directory));
  if ((directory.mode & S_ISVTX) == 0 || caller.IsRoot()) return OkStatus();
  if (caller.uid == victim.uid || caller.uid == directory.uid) return OkStatus();
  return ErrnoError(EPERM, absl::StrFormat("directory %s is sticky and user %d owns neither it nor %s",
                                           directory.fid.ToString(), caller.uid, victim.fid.ToString()));
}

uint32_t ModeWithoutSetuid(uint32_t mode) {
  mode &= ~static_cast<uint32_t>(S_ISUID);
  if ((mode & S_IXGRP) != 0) mode &= ~static_cast<uint32_t>(S_ISGID);
  return mode;
}

void InheritFrom(const Caller& caller, const Inode& directory, Inode* inode) {
  inode->uid = caller.uid;
  inode->gid = caller.gid;
  if ((directory.mode & S_ISGID) != 0) {
    inode->gid = directory.gid;
    if (S_ISDIR(inode->mode)) inode->mode |= S_ISGID;
  }
  // A file that its maker could not have made setgid by chmod is not made so.
  bool setgid_file = S_ISREG(inode->mode) && (inode->mode & (S_ISGID | S_IXGRP)) == (S_ISGID | S_IXGRP);
  if (setgid_file && !caller.IsRoot() && !caller.InGroup(inode->gid))
    inode->mode &= ~static_cast<uint32_t>(S_ISGID);
}

}  // namespace nacre::mds
