#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>

#include "common/limits.h"
#include "rpc/convert.h"
#include "server/metadata/ops/open_common.h"
#include "server/metadata/ops/ops.h"
#include "server/metadata/privileges.h"
#include "server/metadata/truncation.h"

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

Status CheckOpen(const Op& op, const Inode& inode, uint32_t flags) {
  const uint32_t want = WantedAccess(flags);
  if (op.session->record.read_only && (want & kMayWrite) != 0)
    return ErrnoError(EROFS, absl::StrFormat("session %d is mounted read-only", op.session->id));
  RETURN_IF_ERROR(CheckAccess(op.caller, inode, want));
  if (S_ISDIR(inode.mode) && (want & kMayWrite) != 0) {
    return ErrnoError(EISDIR,
                      absl::StrCat(inode.fid.ToString(), " is a directory: it cannot be opened for writing"));
  }
  return OkStatus();
}

// O_TRUNC.
Status Empty(const Op& op, Transaction* transaction, Inode* inode, uint64_t object_sequence) {
  transaction->Dirty(inode);
  TouchModified(inode, op.now);
  if (!op.caller.IsRoot()) inode->mode = ModeWithoutSetuid(inode->mode);
  RETURN_IF_ERROR(TakeCapability(*op.mds->tables, transaction, inode));
  if (inode->size > 0 || inode->blocks > 0) return TruncateToZero(op, transaction, inode, object_sequence);
  return OkStatus();
}

// An end of the session that has dropped its opens already does not come back for this one.
void DropIfEnded(const Op& op) {
  if (op.session->ended()) op.mds->opens.DropSession(op.session->id);
}

}  // namespace

bool OpensForWriting(uint32_t flags) {
  return (flags & O_ACCMODE) == O_WRONLY || (flags & O_ACCMODE) == O_RDWR;
}

bool LeavesTruncationToClient(const Op& op, const Inode& inode) {
  const bool plain = S_ISREG(inode.mode) && (inode.mode & (S_ISUID | S_ISGID)) == 0 && inode.xattrs == 0;
  if (!plain || (inode.size == 0 && inode.blocks == 0) || !op.request.want_lease()) return false;
  if (!op.mds->options.leases || op.mds->Recovering()) return false;
  const Fid directory = CoveringDirectory(inode);
  const SessionId session = op.session->id;
  return directory && op.mds->opens.IsSoleWriter(session, inode.fid) &&
         op.mds->leases.MayGetWrite(session, directory, op.mds->env.clock.Now());
}

void NoteOpen(const Op& op, const Fid& fid, uint32_t flags) {
  op.mds->opens.Open(op.session->id, fid, OpensForWriting(flags), op.stream);
  DropIfEnded(op);
}

void NoteKept(const Op& op, const Fid& fid) {
  op.mds->opens.Hold(op.session->id, fid);
  DropIfEnded(op);
}

Task<Reply> OpenFile(const Op& op, Fid fid, uint32_t flags, bool may_hold_back) {
  const bool may_empty = (flags & O_TRUNC) != 0;
  Transaction transaction(*op.mds->tables);
  CO_ASSIGN_OR_RETURN(LockedFile file, co_await LockFile(*op.mds, fid, may_empty, &transaction));
  Inode* const inode = file.inode;
  CO_RETURN_IF_ERROR(CheckOpen(op, *inode, flags));
  CO_RETURN_IF_ERROR(op.CheckTold(fid));
  const bool held_back = may_empty && may_hold_back && LeavesTruncationToClient(op, *inode);
  const bool truncate = may_empty && S_ISREG(inode->mode) && !held_back;
  if (truncate) CO_RETURN_IF_ERROR(Empty(op, &transaction, inode, file.object_sequence));
  proto::MetadataReply reply;
  proto::Entry* entry = reply.mutable_entry();
  if (S_ISREG(inode->mode) && (truncate || !op.mds->tails.Has(fid))) {
    auto opened = std::make_shared<const Inode>(*inode);
    CO_RETURN_IF_ERROR(FillLayout(*op.mds, opened, entry->mutable_layout(), entry->mutable_data()));
  }
  *entry->mutable_attr() = ToProto(*inode);
  entry->set_held_back(held_back);
  if (truncate) CO_RETURN_IF_ERROR(co_await op.Commit(&transaction, reply));
  NoteOpen(op, fid, flags);
  co_return reply;
}

Task<Reply> Open(const Op& op, const proto::Open& request) {
  co_return co_await OpenFile(op, FromProto(request.fid()), request.flags(), request.may_hold_back());
}

}  // namespace nacre::mds
