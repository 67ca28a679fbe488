// Names: lookup, making, removing, renaming, links; forgetting of what was looked up.
#include <cerrno>
#include <cstring>

#include "fuse/request.h"

namespace nacre::fuse {
namespace {

Task<void> Lookup(Request request, Fid parent, std::string name) {
  Duration absent_until{0};
  StatusOr<client::Known> known =
      co_await request.filesystem().Lookup(request.caller(), parent, std::move(name), &absent_until);
  if (!known.ok() && ToErrno(known.status()) == ENOENT) co_return request.NoEntry(absent_until);
  request.Entry(known);
}

// "." and "..", of an inode that the kernel has forgotten, for those who come with a handle of it
// (open_by_handle_at, NFS). A FID is as good for ever as it was when the handle was made.
Task<void> LookupDot(Request request, Fid fid, bool parent) {
  StatusOr<client::Known> known = co_await request.filesystem().Getattr(request.caller(), fid, nullptr);
  if (known.ok() && parent && known->attr.has_parent()) {
    const proto::Fid& up = known->attr.parent();
    const Fid parent_fid{up.sequence(), up.object(), up.version()};
    known = co_await request.filesystem().Getattr(request.caller(), parent_fid, nullptr);
  }
  if (!known.ok() && ToErrno(known.status()) == ENOENT) co_return request.Error(ESTALE);
  request.Entry(known);
}

Task<void> Mknod(Request request, Fid parent, std::string name, uint32_t mode, uint64_t rdev) {
  request.Entry(co_await request.filesystem().Mknod(request.caller(), parent, std::move(name), mode, rdev));
}

Task<void> Symlink(Request request, Fid parent, std::string name, std::string target) {
  request.Entry(
      co_await request.filesystem().Symlink(request.caller(), parent, std::move(name), std::move(target)));
}

Task<void> Readlink(Request request, Fid fid) {
  StatusOr<std::string> target = co_await request.filesystem().Readlink(request.caller(), fid);
  if (!target.ok()) co_return request.Done(target.status());
  request.Text(*target);
}

Task<void> Unlink(Request request, Fid parent, std::string name) {
  request.Done(co_await request.filesystem().Unlink(request.caller(), parent, std::move(name)));
}

Task<void> Rmdir(Request request, Fid parent, std::string name) {
  request.Done(co_await request.filesystem().Rmdir(request.caller(), parent, std::move(name)));
}

Task<void> Rename(Request request, Fid parent, std::string name, Fid new_parent, std::string new_name,
                  uint32_t flags) {
  request.Done(co_await request.filesystem().Rename(request.caller(), parent, std::move(name), new_parent,
                                                    std::move(new_name), flags));
}

Task<void> Link(Request request, Fid fid, Fid parent, std::string name) {
  request.Entry(co_await request.filesystem().Link(request.caller(), fid, parent, std::move(name)));
}

}  // namespace

void AddNamespace(fuse_lowlevel_ops* ops) {
  ops->lookup = [](fuse_req_t raw, fuse_ino_t parent, const char* name) {
    const bool dot = std::strcmp(name, ".") == 0, dots = std::strcmp(name, "..") == 0;
    if (dot || dots) return Start(raw, LookupDot, FidOf(raw, parent), dots);
    Start(raw, Lookup, FidOf(raw, parent), std::string(name));
  };
  ops->mknod = [](fuse_req_t raw, fuse_ino_t parent, const char* name, mode_t mode, dev_t rdev) {
    Start(raw, Mknod, FidOf(raw, parent), std::string(name), mode, rdev);
  };
  ops->mkdir = [](fuse_req_t raw, fuse_ino_t parent, const char* name, mode_t mode) {
    Start(raw, Mknod, FidOf(raw, parent), std::string(name), (mode & ~S_IFMT) | S_IFDIR, 0);
  };
  ops->symlink = [](fuse_req_t raw, const char* target, fuse_ino_t parent, const char* name) {
    Start(raw, Symlink, FidOf(raw, parent), std::string(name), std::string(target));
  };
  ops->readlink = [](fuse_req_t raw, fuse_ino_t node) { Start(raw, Readlink, FidOf(raw, node)); };
  ops->unlink = [](fuse_req_t raw, fuse_ino_t parent, const char* name) {
    Start(raw, Unlink, FidOf(raw, parent), std::string(name));
  };
  ops->rmdir = [](fuse_req_t raw, fuse_ino_t parent, const char* name) {
    Start(raw, Rmdir, FidOf(raw, parent), std::string(name));
  };
  ops->rename = [](fuse_req_t raw, fuse_ino_t parent, const char* name, fuse_ino_t new_parent,
                   const char* new_name, unsigned flags) {
    Start(raw, Rename, FidOf(raw, parent), std::string(name), FidOf(raw, new_parent), std::string(new_name),
          flags);
  };
  ops->link = [](fuse_req_t raw, fuse_ino_t node, fuse_ino_t parent, const char* name) {
    Start(raw, Link, FidOf(raw, node), FidOf(raw, parent), std::string(name));
  };
  ops->forget = [](fuse_req_t raw, fuse_ino_t node, uint64_t lookups) {
    SessionOf(raw).nodes().Forget(node, lookups);
    fuse_reply_none(raw);
  };
  ops->forget_multi = [](fuse_req_t raw, size_t count, fuse_forget_data* forgets) {
    NodeTable& nodes = SessionOf(raw).nodes();
    for (size_t i = 0; i < count; ++i) nodes.Forget(forgets[i].ino, forgets[i].nlookup);
    fuse_reply_none(raw);
  };
}

}  // namespace nacre::fuse
