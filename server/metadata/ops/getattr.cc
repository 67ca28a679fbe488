#include <sys/stat.h>

#include "rpc/convert.h"
#include "server/metadata/ops/ops.h"

namespace nacre::mds {

Task<Reply> Getattr(const Op& op, const proto::Getattr& request) {
  Mds& mds = *op.mds;
  const Fid fid = FromProto(request.fid());
  proto::MetadataReply reply;
  proto::AttrReply* out = reply.mutable_attr();
  CO_ASSIGN_OR_RETURN(InodePtr inode, mds.tables->GetInode(fid));
  if (request.want_layout() && S_ISREG(inode->mode)) {
    CO_ASSIGN_OR_RETURN(FidLocks::Guard guard, co_await LockSettled(op.mds, op.session, fid));
    CO_ASSIGN_OR_RETURN(inode, mds.tables->GetInode(fid));
    CO_RETURN_IF_ERROR(FillLayout(mds, inode, out->mutable_layout(), out->mutable_data()));
  }
  *out->mutable_attr() = ToProto(*inode);
  co_return reply;
}

}  // namespace nacre::mds
