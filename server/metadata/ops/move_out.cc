#include <sys/stat.h>

#include <cerrno>

#include "rpc/convert.h"
#include "server/metadata/move_out.h"
#include "server/metadata/ops/ops.h"

namespace nacre::mds {

// The move is committed first, then the reply is recorded: a repeat in between finds a file that has objects,
// and answers the same.
Task<Reply> MoveOut(const Op& op, const proto::MoveOut& request) {
  const Fid fid = FromProto(request.fid());
  CO_ASSIGN_OR_RETURN(InodePtr before, op.mds->tables->GetInode(fid));
  if (!S_ISREG(before->mode)) {
    co_return ErrnoError(EINVAL,
                         absl::StrFormat("%s is no regular file: mode %o", fid.ToString(), before->mode));
  }
  const Session::Wait for_osts(op.session);
  std::vector<Fid> fids(1, fid);
  FidLocks::Guard data = co_await op.mds->data_locks.Lock(std::move(fids));
  CO_RETURN_IF_ERROR(co_await MoveOutLocked(op, fid));
  CO_RETURN_IF_ERROR(
      co_await SettleTailFor(op.mds, op.session, fid));  // of one that had objects: its layout follows
  FidLocks::Guard guard = co_await LockOne(*op.mds, fid);
  CO_ASSIGN_OR_RETURN(InodePtr inode, op.mds->tables->GetInode(fid));
  proto::MetadataReply reply;
  *reply.mutable_moved_out()->mutable_attr() = ToProto(*inode);
  *reply.mutable_moved_out()->mutable_layout() = ToProto(inode->layout);
  Transaction transaction(*op.mds->tables);
  if (inode->size == 0) transaction.batch().UseReserve();  // as its move did
  CO_RETURN_IF_ERROR(co_await op.Commit(&transaction, reply));
  co_return reply;
}

}  // namespace nacre::mds
