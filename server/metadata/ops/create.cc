// Create and open in one step.
#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>

#include "rpc/convert.h"
#include "server/metadata/ops/create_common.h"
#include "server/metadata/ops/open_common.h"
#include "server/metadata/ops/ops.h"

namespace nacre::mds {
namespace {

// The name is there: open what it means.
Task<Reply> OpenExisting(const Op& op, Fid fid, uint32_t flags) {
  CO_ASSIGN_OR_RETURN(InodePtr inode, op.mds->tables->GetInode(fid));
  if (S_ISDIR(inode->mode)) co_return ErrnoError(EISDIR, absl::StrCat(fid.ToString(), " is a directory"));
  if (!S_ISREG(inode->mode)) {
    proto::MetadataReply reply;  // the kernel opens fifos and devices, follows symlinks
    *reply.mutable_entry()->mutable_attr() = ToProto(*inode);
    co_return reply;
  }
  co_return co_await OpenFile(op, fid, flags & ~static_cast<uint32_t>(O_CREAT | O_EXCL));
}

}  // namespace

Task<Reply> Create(const Op& op, const proto::Create& request) {
  CO_RETURN_IF_ERROR(CheckName(request.name()));
  const Fid parent = FromProto(request.parent());
  const uint32_t mode = S_IFREG | (request.mode() & 07777);
  NewInode wanted{parent, request.name(), mode, 0, {}};
  CO_RETURN_IF_ERROR(co_await Prepare(op, &wanted));
  FidLocks::Guard guard = co_await LockOne(*op.mds, parent);
  Transaction transaction(*op.mds->tables);
  Status fresh = CheckNew(op, &transaction, wanted);
  if (ToErrno(fresh) == EEXIST && !request.exclusive()) {
    CO_ASSIGN_OR_RETURN(Entry existing, transaction.Find(parent, wanted.name));
    guard.Release();
    co_return co_await OpenExisting(op, existing.fid, request.flags());
  }
  CO_RETURN_IF_ERROR(fresh);
  proto::MetadataReply reply;
  CO_ASSIGN_OR_RETURN(Inode * inode, Make(op, &transaction, wanted, reply.mutable_entry()));
  (void)inode;
  CO_RETURN_IF_ERROR(co_await op.Commit(&transaction, reply));
  NoteOpen(op, wanted.fid, request.flags());
  co_return reply;
}

}  // namespace nacre::mds
