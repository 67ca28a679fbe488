// Attributes of inodes and of the file system as a whole.
#include <sys/statvfs.h>

#include "fuse/request.h"

namespace nacre::fuse {
namespace {

Task<void> Getattr(Request request, Fid fid, client::HandlePtr handle) {
  request.Attributes(co_await request.filesystem().Getattr(request.caller(), fid, std::move(handle)));
}

Task<void> Setattr(Request request, Fid fid, client::SetAttributes set, client::HandlePtr handle) {
  StatusOr<client::Known> known =
      co_await request.filesystem().Setattr(request.caller(), fid, std::move(set), std::move(handle));
  if (!request.Attributes(known)) co_await ForgetInode(request, fid);
}

client::SetAttributes Wanted(const struct stat& values, int which) {
  client::SetAttributes set;
  if (which & FUSE_SET_ATTR_MODE) set.mode = values.st_mode & 07777;
  if (which & FUSE_SET_ATTR_UID) set.uid = values.st_uid;
  if (which & FUSE_SET_ATTR_GID) set.gid = values.st_gid;
  if (which & FUSE_SET_ATTR_SIZE) set.size = static_cast<uint64_t>(values.st_size);
  set.atime_now = (which & FUSE_SET_ATTR_ATIME_NOW) != 0;
  set.mtime_now = (which & FUSE_SET_ATTR_MTIME_NOW) != 0;
  if ((which & FUSE_SET_ATTR_ATIME) && !set.atime_now) {
    set.atime = WallTime{values.st_atim.tv_sec, static_cast<uint32_t>(values.st_atim.tv_nsec)};
  }
  if ((which & FUSE_SET_ATTR_MTIME) && !set.mtime_now) {
    set.mtime = WallTime{values.st_mtim.tv_sec, static_cast<uint32_t>(values.st_mtim.tv_nsec)};
  }
  set.kill_suid = (which & FUSE_SET_ATTR_KILL_SUID) != 0;
  return set;
}

Task<void> Statfs(Request request) {
  StatusOr<proto::StatfsReply> reply = co_await request.filesystem().Statfs(request.caller());
  if (!reply.ok()) co_return request.Done(reply.status());
  struct statvfs out {};
  out.f_bsize = out.f_frsize = kBlockSize;
  out.f_blocks = reply->total_bytes() / kBlockSize;
  out.f_bfree = reply->free_bytes() / kBlockSize;
  out.f_bavail = reply->available_bytes() / kBlockSize;
  out.f_files = reply->inodes() + reply->inodes_free();
  out.f_ffree = out.f_favail = reply->inodes_free();
  out.f_namemax = 255;
  request.Reply(fuse_reply_statfs, &out);
}

}  // namespace

void AddAttributes(fuse_lowlevel_ops* ops) {
  ops->getattr = [](fuse_req_t raw, fuse_ino_t node, fuse_file_info* info) {
    Start(raw, Getattr, FidOf(raw, node), info != nullptr ? HandleOf(*info) : nullptr);
  };
  ops->setattr = [](fuse_req_t raw, fuse_ino_t node, struct stat* values, int which, fuse_file_info* info) {
    Start(raw, Setattr, FidOf(raw, node), Wanted(*values, which),
          info != nullptr ? HandleOf(*info) : nullptr);
  };
  ops->statfs = [](fuse_req_t raw, fuse_ino_t) { Start(raw, Statfs); };
}

}  // namespace nacre::fuse
