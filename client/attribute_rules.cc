#include "client/attribute_rules.h"

#include <sys/stat.h>

#include <algorithm>

#include "rpc/convert.h"

namespace nacre::client {
namespace {

// As the MDS does (server/metadata/mds.cc, TouchWritten).
void TouchWritten(const proto::Time& when, proto::Attr* attr) {
  const WallTime time = FromProto(when), mtime = FromProto(attr->mtime()), ctime = FromProto(attr->ctime());
  if (mtime > ctime || time > mtime) *attr->mutable_mtime() = when;
  if (time > ctime) *attr->mutable_ctime() = when;
}

void KillSuid(proto::Attr* attr) {
  const uint32_t setgid = (attr->mode() & S_IXGRP) != 0 ? S_ISGID : 0;
  attr->set_mode(attr->mode() & ~(S_ISUID | setgid));
}

}  // namespace

proto::Attr NewAttr(const Caller& caller, const proto::Attr& directory, const proto::MetadataRequest& request,
                    bool inline_data) {
  const proto::Mknod& mknod = request.mknod();
  const bool is_directory = S_ISDIR(mknod.mode()), is_file = S_ISREG(mknod.mode());
  const bool inherits = (directory.mode() & S_ISGID) != 0;
  proto::Attr attr;
  *attr.mutable_fid() = mknod.fid();
  attr.set_mode(S_ISLNK(mknod.mode()) ? S_IFLNK | 0777 : mknod.mode());
  if (inherits && is_directory) attr.set_mode(attr.mode() | S_ISGID);
  attr.set_nlink(is_directory ? 2 : 1);
  attr.set_uid(caller.uid);
  attr.set_gid(inherits ? directory.gid() : caller.gid);
  if (S_ISCHR(mknod.mode()) || S_ISBLK(mknod.mode())) attr.set_rdev(mknod.rdev());
  attr.set_size(mknod.target().size());
  *attr.mutable_atime() = *attr.mutable_mtime() = *attr.mutable_ctime() = *attr.mutable_btime() =
      request.time();
  attr.set_change(1);
  *attr.mutable_parent() = directory.fid();
  attr.set_inline_data(is_file && inline_data);
  attr.set_layout_generation(is_file ? 1 : 0);
  return attr;
}

void TouchEntries(proto::Attr* directory, const proto::Time& now, int by, bool subdirectory) {
  directory->set_size(directory->size() + static_cast<uint64_t>(by));
  if (subdirectory) directory->set_nlink(directory->nlink() + static_cast<uint32_t>(by));
  *directory->mutable_mtime() = *directory->mutable_ctime() = now;
  directory->set_change(directory->change() + 1);
}

void ApplySetattr(const proto::Setattr& set, const proto::Time& now, proto::Attr* attr) {
  if (set.set_mode()) attr->set_mode((attr->mode() & S_IFMT) | (set.mode() & 07777));
  if (set.set_uid()) attr->set_uid(set.uid());
  if (set.set_gid()) attr->set_gid(set.gid());
  if (set.set_atime()) *attr->mutable_atime() = set.atime_now() ? now : set.atime();
  if (set.set_mtime()) *attr->mutable_mtime() = set.mtime_now() ? now : set.mtime();
  *attr->mutable_ctime() = now;
}

void ApplyTold(const proto::MetadataRequest& request, proto::Attr* attr) {
  const bool is_inline = request.has_write_inline();
  const proto::WriteInline& data = request.write_inline();
  const proto::UpdateSize& update = request.update_size();
  if (data.replace() && (attr->size() > 0 || attr->blocks() > 0 || !attr->inline_data())) {
    attr->set_size(0);
    attr->set_inline_data(true);
    attr->set_layout_generation(attr->layout_generation() + 1);
  }
  const uint64_t end = is_inline ? data.offset() + data.data().size() : update.size();
  attr->set_size(std::max(attr->size(), end));
  const int64_t blocks = static_cast<int64_t>(attr->blocks()) + update.blocks_delta();
  attr->set_blocks(is_inline ? (attr->size() + 511) / 512
                             : static_cast<uint64_t>(std::max<int64_t>(blocks, 0)));
  TouchWritten(is_inline ? data.mtime() : update.mtime(), attr);
  if (is_inline ? data.kill_suid() : update.kill_suid()) KillSuid(attr);
  attr->set_change(attr->change() + 1);
}

}  // namespace nacre::client
