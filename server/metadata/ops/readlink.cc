#include <sys/stat.h>

#include <cerrno>

#include "rpc/convert.h"
#include "server/metadata/ops/ops.h"

namespace nacre::mds {

Task<Reply> Readlink(const Op& op, const proto::Readlink& request) {
  Mds& mds = *op.mds;
  CO_ASSIGN_OR_RETURN(InodePtr inode, mds.tables->GetInode(FromProto(request.fid())));
  if (!S_ISLNK(inode->mode)) {
    co_return ErrnoError(EINVAL,
                         absl::StrFormat("%s is no symlink: mode %o", inode->fid.ToString(), inode->mode));
  }
  proto::MetadataReply reply;
  CO_ASSIGN_OR_RETURN(*reply.mutable_readlink()->mutable_target(),
                      mds.tables->Get(FidKey(Table::kBody, inode->fid)));
  co_return reply;
}

}  // namespace nacre::mds
