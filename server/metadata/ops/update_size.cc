#include <sys/stat.h>

#include <cerrno>

#include "rpc/convert.h"
#include "server/metadata/ops/ops.h"
#include "server/metadata/truncation.h"

namespace nacre::mds {
namespace {

Status CheckTarget(const Inode& inode, const proto::UpdateSize& request) {
  if (!S_ISREG(inode.mode)) {
    return ErrnoError(EINVAL,
                      absl::StrFormat("%s is no regular file: mode %o", inode.fid.ToString(), inode.mode));
  }
  if (request.size() > kMaxFileSize) {
    return ErrnoError(
        EFBIG, absl::StrFormat("a size of %d bytes: at most %d are possible", request.size(), kMaxFileSize));
  }
  uint32_t generation = request.layout_generation();
  if (generation != 0 && generation != inode.layout.generation) {
    return ErrnoError(ESTALE,
                      absl::StrFormat("%s has layout generation %d by now, not %d: write the data again",
                                      inode.fid.ToString(), inode.layout.generation, generation));
  }
  if (inode.inline_data && request.size() > inode.size) {
    return ErrnoError(ESTALE,
                      absl::StrFormat("the data of %s lies in the MDT: move it out before writing to objects",
                                      inode.fid.ToString()));
  }
  return OkStatus();
}

void AddBlocks(Inode* inode, int64_t delta) {
  const uint64_t change = static_cast<uint64_t>(delta);  // two's complement: negated without overflow
  const bool below_zero = delta < 0 && inode->blocks < uint64_t{0} - change;
  inode->blocks = below_zero ? 0 : inode->blocks + change;
}

}  // namespace

Task<Reply> UpdateSize(const Op& op, const proto::UpdateSize& request) {
  const Fid fid = FromProto(request.fid());
  FidLocks::Guard guard = co_await LockQuiet(*op.mds, fid);
  Transaction transaction(*op.mds->tables);
  CO_ASSIGN_OR_RETURN(Inode * inode, transaction.Load(fid));
  CO_RETURN_IF_ERROR(CheckTarget(*inode, request));
  transaction.Dirty(inode);
  inode->size = std::max(inode->size, request.size());
  AddBlocks(inode, request.blocks_delta());
  TouchWritten(inode, request.has_mtime() ? FromProto(request.mtime()) : op.now);
  if (request.has_atime()) inode->atime = FromProto(request.atime());
  if (request.kill_suid()) inode->mode = ModeWithoutSetuid(inode->mode);
  proto::MetadataReply reply;
  *reply.mutable_attr()->mutable_attr() = op.AttrOf(*inode);
  KeepPromise(op, *inode, request.promised(), &transaction, reply.mutable_attr());
  CO_RETURN_IF_ERROR(co_await op.Commit(&transaction, reply));
  co_return reply;
}

}  // namespace nacre::mds
