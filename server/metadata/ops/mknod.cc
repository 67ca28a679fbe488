#include <sys/stat.h>

#include <cerrno>

#include "rpc/convert.h"
#include "server/metadata/ops/create_common.h"
#include "server/metadata/ops/ops.h"

namespace nacre::mds {
namespace {

Status CheckType(const Op& op, const proto::Mknod& request) {
  uint32_t mode = request.mode();
  if (S_ISLNK(mode)) {
    if (request.target().empty()) return ErrnoError(ENOENT, "a symlink's target may not be empty");
    if (request.target().size() <= kMaxSymlink) return OkStatus();
    return ErrnoError(ENAMETOOLONG, absl::StrFormat("a symlink's target of %d bytes: at most %d are allowed",
                                                    request.target().size(), kMaxSymlink));
  }
  if (S_ISREG(mode) || S_ISDIR(mode) || S_ISFIFO(mode) || S_ISSOCK(mode)) return OkStatus();
  if (!S_ISCHR(mode) && !S_ISBLK(mode)) {
    return ErrnoError(EINVAL, absl::StrFormat("mode %o names no type of file", mode));
  }
  if (op.caller.IsRoot()) return OkStatus();
  return ErrnoError(EPERM, absl::StrFormat("user %d may not make device nodes", op.caller.uid));
}

}  // namespace

Task<Reply> Mknod(const Op& op, const proto::Mknod& request) {
  CO_RETURN_IF_ERROR(CheckName(request.name()));
  CO_RETURN_IF_ERROR(CheckType(op, request));
  const Fid parent = FromProto(request.parent());
  NewInode wanted{parent, request.name(), request.mode(), request.rdev(), request.target()};
  std::vector<Fid> changed(1, parent);
  if (request.has_fid()) wanted.fid = FromProto(request.fid());
  if (request.has_fid()) changed.push_back(wanted.fid);
  CO_RETURN_IF_ERROR(co_await Prepare(op, &wanted));
  FidLocks::Guard guard = co_await op.mds->locks.Lock(std::move(changed));
  Transaction transaction(*op.mds->tables);
  CO_RETURN_IF_ERROR(CheckNew(op, &transaction, wanted));
  proto::MetadataReply reply;
  CO_ASSIGN_OR_RETURN(Inode * inode, Make(op, &transaction, wanted, reply.mutable_entry()));
  // Nobody has heard of it yet: that its maker is alone in it is seen at the end (GrantForChanging).
  const std::vector<Touched> made(1, Touched{inode->fid});
  if (S_ISDIR(request.mode())) (void)op.guard->TryCover(made);
  CO_RETURN_IF_ERROR(co_await op.Commit(&transaction, reply));
  co_return reply;
}

}  // namespace nacre::mds
