#include <sys/stat.h>

#include <cerrno>

#include "rpc/convert.h"
#include "server/metadata/ops/ops.h"
#include "server/metadata/truncation.h"

namespace nacre::mds {
namespace {

Status CheckTarget(const Op& op, const Inode& inode, const proto::WriteInline& request) {
  if (!S_ISREG(inode.mode)) {
    return ErrnoError(EINVAL,
                      absl::StrFormat("%s is no regular file: mode %o", inode.fid.ToString(), inode.mode));
  }
  if (request.replace() && (request.append() || request.offset() != 0)) {
    return ErrnoError(EINVAL, absl::StrFormat("%s: what replaces a file begins at 0, not at %d",
                                              inode.fid.ToString(), request.offset()));
  }
  if (!inode.inline_data && !request.replace()) {
    return ErrnoError(ESTALE, absl::StrFormat("the data of %s lies in objects by now: get the layout",
                                              inode.fid.ToString()));
  }
  uint64_t limit = op.mds->options.inline_limit;
  uint64_t offset = request.append() ? inode.size : request.offset();
  if (offset <= limit && request.data().size() <= limit - offset) return OkStatus();
  return ErrnoError(EFBIG,
                    absl::StrFormat("%d bytes at %d of %s pass the limit for inline data, %d: move it out",
                                    request.data().size(), offset, inode.fid.ToString(), limit));
}

}  // namespace

Task<Reply> WriteInline(const Op& op, const proto::WriteInline& request) {
  const Fid fid = FromProto(request.fid());
  Transaction transaction(*op.mds->tables);
  CO_ASSIGN_OR_RETURN(LockedFile file, co_await LockFile(*op.mds, fid, request.replace(), &transaction));
  Inode* const inode = file.inode;
  CO_RETURN_IF_ERROR(CheckTarget(op, *inode, request));
  // An empty file that has a layout for objects goes back into the MDT as well.
  if (request.replace() && (inode->size > 0 || inode->blocks > 0 || !inode->inline_data))
    CO_RETURN_IF_ERROR(TruncateToZero(op, &transaction, inode, file.object_sequence));
  auto before = std::make_shared<const Inode>(*inode);
  proto::Layout unused;
  std::string body;
  CO_RETURN_IF_ERROR(FillLayout(*op.mds, before, &unused, &body));
  uint64_t offset = request.append() ? inode->size : request.offset();
  if (!request.data().empty()) {
    body.resize(std::max<size_t>(body.size(), offset + request.data().size()), '\0');
    body.replace(offset, request.data().size(), request.data());
  }
  proto::MetadataReply reply;
  transaction.Dirty(inode);
  inode->size = body.size();
  inode->blocks = (inode->size + 511) / 512;
  TouchWritten(inode, request.has_mtime() ? FromProto(request.mtime()) : op.now);
  if (request.kill_suid()) inode->mode = ModeWithoutSetuid(inode->mode);
  if (!body.empty()) transaction.batch().Put(FidKey(Table::kBody, fid), std::move(body));
  KeepPromise(op, *inode, request.promised(), &transaction, reply.mutable_attr());
  *reply.mutable_attr()->mutable_attr() = op.AttrOf(*inode);
  CO_RETURN_IF_ERROR(co_await op.Commit(&transaction, reply));
  co_return reply;
}

}  // namespace nacre::mds
