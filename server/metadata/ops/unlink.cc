#include <sys/stat.h>

#include <cerrno>

#include "rpc/convert.h"
#include "server/metadata/ops/open_common.h"
#include "server/metadata/ops/ops.h"

namespace nacre::mds {
namespace {

Status CheckVictim(const proto::Unlink& request, const Inode& victim) {
  bool directory = S_ISDIR(victim.mode);
  if (request.directory() && !directory) {
    return ErrnoError(ENOTDIR, absl::StrCat(victim.fid.ToString(), " is no directory: remove it by unlink"));
  }
  if (!request.directory() && directory) {
    return ErrnoError(EISDIR, absl::StrCat(victim.fid.ToString(), " is a directory: remove it by rmdir"));
  }
  if (directory && victim.size > 0) {
    return ErrnoError(ENOTEMPTY,
                      absl::StrFormat("directory %s has %d entries", victim.fid.ToString(), victim.size));
  }
  return OkStatus();
}

Status CheckNameToRemove(const proto::Unlink& request) {
  if (request.directory() && request.name() == ".") return ErrnoError(EINVAL, "\".\" cannot be removed");
  if (request.directory() && request.name() == "..") return ErrnoError(ENOTEMPTY, "\"..\" is not empty");
  return CheckName(request.name());
}

}  // namespace

Task<Reply> Unlink(const Op& op, const proto::Unlink& request) {
  CO_RETURN_IF_ERROR(CheckNameToRemove(request));
  Mds& mds = *op.mds;
  const Fid parent = FromProto(request.parent());
  FidLocks::Guard guard = co_await LockEntry(mds, parent, request.name());
  Transaction transaction(*mds.tables);
  CO_ASSIGN_OR_RETURN(Inode * directory, transaction.Load(parent));
  CO_RETURN_IF_ERROR(CheckDirectory(*directory));
  CO_RETURN_IF_ERROR(CheckAccess(op.caller, *directory, kMayExecute));
  CO_ASSIGN_OR_RETURN(Entry entry, transaction.Find(parent, request.name()));
  CO_ASSIGN_OR_RETURN(Inode * victim, transaction.Load(entry.fid));
  CO_RETURN_IF_ERROR(CheckRemoval(op.caller, *directory, *victim));
  CO_RETURN_IF_ERROR(CheckVictim(request, *victim));
  CO_RETURN_IF_ERROR(transaction.RemoveEntry(parent, request.name()));
  CO_RETURN_IF_ERROR(DropLink(mds, &transaction, victim, parent, entry.cookie, request.keep_open(), op.now));
  transaction.Dirty(directory);
  TouchWritten(directory, op.now);
  --directory->size;
  if (S_ISDIR(victim->mode)) --directory->nlink;
  proto::MetadataReply reply;
  *reply.mutable_attr()->mutable_attr() = op.AttrOf(*victim);
  if (op.TellsAttributes()) *reply.mutable_attr()->mutable_parent() = ToProto(*directory);
  CO_RETURN_IF_ERROR(co_await op.Commit(&transaction, reply));
  if (request.keep_open() && victim->nlink == 0) NoteKept(op, entry.fid);
  co_return reply;
}

}  // namespace nacre::mds
