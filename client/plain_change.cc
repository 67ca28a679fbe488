#include "client/plain_change.h"

#include <sys/stat.h>

#include "common/limits.h"

namespace nacre::client {

bool PlainName(const std::string& name) {
  return !name.empty() && name.size() <= kMaxName && name != "." && name != ".." &&
         name.find('/') == name.npos && name.find('\0') == name.npos;
}

// Setuid and setgid of files are for the MDS to judge.
bool PlainType(const Caller& caller, const proto::Mknod& mknod) {
  const uint32_t mode = mknod.mode();
  if (S_ISREG(mode)) return (mode & (S_ISUID | S_ISGID)) == 0;
  if (S_ISLNK(mode)) return !mknod.target().empty() && mknod.target().size() <= kMaxSymlink;
  if (S_ISCHR(mode) || S_ISBLK(mode)) return caller.uid == 0;
  return S_ISDIR(mode) || S_ISFIFO(mode) || S_ISSOCK(mode);
}

bool IsSticky(const Inode& directory, const Caller& caller) {
  return (directory.attr.mode() & S_ISVTX) != 0 && caller.uid != 0 && caller.uid != directory.attr.uid();
}

bool Removable(const Inode& victim, const Caller& caller, bool sticky, bool directory) {
  const proto::Attr& attr = victim.attr;
  if (attr.nlink() == 0) return false;
  if (S_ISDIR(attr.mode()) != directory || (directory && attr.size() > 0)) return false;
  return !sticky || caller.uid == attr.uid();
}

// The owner of a file may set its mode and times, root its owner as well; the MDS judges what setuid and
// setgid bits make of it.
bool PlainSetattr(const Inode& inode, const Caller& caller, const SetAttributes& set) {
  const proto::Attr& attr = inode.attr;
  constexpr uint32_t kSet = S_ISUID | S_ISGID;
  if (attr.nlink() == 0) return false;
  if (set.size || inode.pending.kill_suid) return false;
  if (((attr.mode() | set.mode.value_or(0)) & kSet) != 0 && !S_ISDIR(attr.mode())) return false;
  // The MDS takes the setuid bits, of which there are none, and a file's capability, which may be among
  // these.
  const bool privileges_go = set.kill_suid || set.uid || set.gid;
  if (privileges_go && attr.has_xattrs()) return false;
  if (caller.uid == 0) return true;
  return caller.uid == attr.uid() && !set.uid && !set.gid && (set.mode.value_or(0) & kSet) == 0;
}

}  // namespace nacre::client
