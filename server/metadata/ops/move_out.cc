#include <sys/stat.h>

#include <cerrno>

#include "rpc/convert.h"
#include "server/metadata/ops/ops.h"
#include "server/metadata/truncate.h"

namespace nacre::mds {

// Idempotent by itself: the move is committed first, then the reply is recorded.
Task<Reply> MoveOut(const Op& op, const proto::MoveOut& request) {
  const Fid fid = FromProto(request.fid());
  CO_ASSIGN_OR_RETURN(InodePtr before, op.mds->tables->GetInode(fid));
  if (!S_ISREG(before->mode)) {
    co_return ErrnoError(EINVAL,
                         absl::StrFormat("%s is no regular file: mode %o", fid.ToString(), before->mode));
  }
  std::vector<Fid> fids(1, fid);
  FidLocks::Guard data = co_await op.mds->data_locks.Lock(std::move(fids));
  CO_RETURN_IF_ERROR(co_await MoveOutLocked(op.mds, fid));
  FidLocks::Guard guard = co_await LockOne(*op.mds, fid);
  CO_ASSIGN_OR_RETURN(InodePtr inode, op.mds->tables->GetInode(fid));
  proto::MetadataReply reply;
  *reply.mutable_moved_out()->mutable_attr() = ToProto(*inode);
  *reply.mutable_moved_out()->mutable_layout() = ToProto(inode->layout);
  Transaction transaction(*op.mds->tables);
  CO_RETURN_IF_ERROR(co_await op.Commit(&transaction, reply));
  co_return reply;
}

}  // namespace nacre::mds
