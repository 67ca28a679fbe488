#include <sys/stat.h>

#include <cerrno>

#include "rpc/convert.h"
#include "server/metadata/ops/ops.h"
#include "server/metadata/truncation.h"

namespace nacre::mds {
namespace {

Status CheckTarget(const Inode& inode, uint64_t length) {
  if (!S_ISREG(inode.mode)) {
    return ErrnoError(EINVAL,
                      absl::StrFormat("%s is no regular file: mode %o", inode.fid.ToString(), inode.mode));
  }
  if (inode.inline_data) {
    return ErrnoError(ESTALE,
                      absl::StrFormat("the data of %s lies in the MDT: write it inline, or move it out first",
                                      inode.fid.ToString()));
  }
  if (length <= kMaxFileSize && inode.size <= kMaxFileSize - length) return OkStatus();
  return ErrnoError(EFBIG, absl::StrFormat("%d bytes behind the %d of %s are too many", length, inode.size,
                                           inode.fid.ToString()));
}

}  // namespace

Task<Reply> Append(const Op& op, const proto::Append& request) {
  const Fid fid = FromProto(request.fid());
  FidLocks::Guard guard = co_await LockQuiet(*op.mds, fid);
  Transaction transaction(*op.mds->tables);
  CO_ASSIGN_OR_RETURN(Inode * inode, transaction.Load(fid));
  CO_RETURN_IF_ERROR(CheckTarget(*inode, request.length()));
  proto::MetadataReply reply;
  reply.mutable_append()->set_offset(inode->size);
  transaction.Dirty(inode);
  inode->size += request.length();
  TouchModified(inode, op.now);
  *reply.mutable_append()->mutable_attr() = ToProto(*inode);
  CO_RETURN_IF_ERROR(co_await op.Commit(&transaction, reply));
  co_return reply;
}

}  // namespace nacre::mds
