#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>

#include "common/limits.h"
#include "rpc/convert.h"
#include "server/metadata/ops/open_common.h"
#include "server/metadata/ops/ops.h"
#include "server/metadata/privileges.h"
#include "server/metadata/truncate.h"

namespace nacre::mds {
namespace {

uint32_t WantedAccess(uint32_t flags) {
  uint32_t want = 0;
  if (flags & kOpenToExecute) {
    want |= kMayExecute;
  } else if ((flags & O_ACCMODE) != O_WRONLY) {
    want |= kMayRead;
  }
  if (OpensForWriting(flags) || (flags & O_TRUNC) != 0) want |= kMayWrite;
  return want;
}

Task<FidLocks::Guard> LockForOpen(Mds& mds, Fid fid, bool truncate) {
  if (truncate) co_return co_await LockQuiet(mds, fid);
  co_return co_await LockOne(mds, fid);
}

// O_TRUNC. Not recorded: a repeated open truncates again, which the client cannot tell from the first.
Task<Status> Empty(const Op& op, Fid fid, uint64_t object_sequence) {
  Transaction transaction(*op.mds->tables);
  CO_ASSIGN_OR_RETURN(Inode * inode, transaction.Load(fid));
  transaction.Dirty(inode);
  TouchModified(inode, op.now);
  if (!op.caller.IsRoot()) inode->mode = ModeWithoutSetuid(inode->mode);
  CO_RETURN_IF_ERROR(TakeCapability(*op.mds->tables, &transaction, inode));
  if (inode->size > 0 || inode->blocks > 0) TruncateToZero(*op.mds, &transaction, inode, object_sequence);
  co_return co_await op.mds->tables->Commit(&transaction);
}

}  // namespace

bool OpensForWriting(uint32_t flags) {
  return (flags & O_ACCMODE) == O_WRONLY || (flags & O_ACCMODE) == O_RDWR;
}

void NoteOpen(const Op& op, const Fid& fid, OpenHow how) {
  if (how.untold) return;
  op.mds->opens.Open(op.session->id, fid, OpensForWriting(how.flags));
}

Task<Reply> OpenFile(const Op& op, Fid fid, OpenHow how) {
  const uint32_t flags = how.flags;
  const bool truncate = (flags & O_TRUNC) != 0;
  uint64_t object_sequence = 0;
  if (truncate) {
    CO_ASSIGN_OR_RETURN(object_sequence, co_await op.mds->ids.NextObjectSequence());
  }
  FidLocks::Guard guard = co_await LockForOpen(*op.mds, fid, truncate);
  CO_ASSIGN_OR_RETURN(InodePtr inode, op.mds->tables->GetInode(fid));
  CO_RETURN_IF_ERROR(CheckAccess(op.caller, *inode, WantedAccess(flags)));
  if (S_ISDIR(inode->mode) && (WantedAccess(flags) & kMayWrite) != 0) {
    co_return ErrnoError(EISDIR,
                         absl::StrCat(fid.ToString(), " is a directory: it cannot be opened for writing"));
  }
  if (truncate && S_ISREG(inode->mode)) {
    CO_RETURN_IF_ERROR(co_await Empty(op, fid, object_sequence));
    CO_ASSIGN_OR_RETURN(inode, op.mds->tables->GetInode(fid));
  }
  proto::MetadataReply reply;
  proto::Entry* entry = reply.mutable_entry();
  if (S_ISREG(inode->mode)) {
    CO_RETURN_IF_ERROR(FillLayout(*op.mds, inode, entry->mutable_layout(), entry->mutable_data()));
  }
  *entry->mutable_attr() = ToProto(*inode);
  NoteOpen(op, fid, how);
  co_return reply;
}

Task<Reply> Open(const Op& op, const proto::Open& request) {
  OpenHow how{request.flags(), request.untold()};
  co_return co_await OpenFile(op, FromProto(request.fid()), how);
}

}  // namespace nacre::mds
