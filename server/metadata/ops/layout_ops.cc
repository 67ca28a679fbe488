// SetLayout and GetLayout: striping as a user sees it.
#include <sys/stat.h>

#include <cerrno>

#include "rpc/convert.h"
#include "server/metadata/ops/ops.h"
#include "server/metadata/truncation.h"

namespace nacre::mds {
namespace {

Status SetOnDirectory(const Op& op, Inode* directory, LayoutTemplate wanted) {
  RETURN_IF_ERROR(CheckOwner(op.caller, *directory));
  directory->default_layout = std::move(wanted);
  return OkStatus();
}

// EBUSY for a file that has data.
Status CheckEmpty(const Inode& file) {
  if (file.size == 0 && file.blocks == 0) return OkStatus();
  return ErrnoError(
      EBUSY,
      absl::StrFormat("file %s has data already (%d bytes): its layout stays; set it on a new, empty file "
                      "and copy the data there",
                      file.fid.ToString(), file.size));
}

Status SetOnFile(const Op& op, Inode* file, const LayoutTemplate& wanted, uint64_t object_sequence,
                 KvBatch* batch) {
  RETURN_IF_ERROR(CheckAccess(op.caller, *file, kMayWrite));
  if (wanted.empty())
    return ErrnoError(EINVAL, absl::StrCat("no layout was given for file ", file->fid.ToString()));
  RETURN_IF_ERROR(CheckEmpty(*file));
  QueueDestroy(*file, batch);
  const uint32_t generation = file->layout.generation;
  ASSIGN_OR_RETURN(file->layout, Instantiate(wanted, op.Usable(), &op.mds->chooser, object_sequence));
  file->layout.generation = generation;
  RaiseGeneration(*op.mds, &file->layout);
  return OkStatus();
}

Status FillReply(Mds& mds, const Inode& inode, proto::LayoutReply* reply) {
  *reply->mutable_attr() = ToProto(inode);
  if (S_ISREG(inode.mode)) *reply->mutable_layout() = ToProto(inode.layout);
  if (!S_ISDIR(inode.mode)) return OkStatus();
  bool inherited = false;
  ASSIGN_OR_RETURN(LayoutTemplate layout, TemplateFor(mds, inode, &inherited));
  *reply->mutable_directory_default() = ToProto(layout);
  reply->set_inherited(inherited);
  return OkStatus();
}

Status CheckHasLayout(const Inode& inode) {
  if (S_ISREG(inode.mode) || S_ISDIR(inode.mode)) return OkStatus();
  return ErrnoError(EINVAL, absl::StrFormat("only files and directories have layouts; %s has mode %o",
                                            inode.fid.ToString(), inode.mode));
}

}  // namespace

Task<Reply> SetLayout(const Op& op, const proto::SetLayout& request) {
  const Fid fid = FromProto(request.fid());
  CO_ASSIGN_OR_RETURN(LayoutTemplate wanted, CheckTemplate(request.layout()));
  CO_ASSIGN_OR_RETURN(uint64_t sequence, co_await op.mds->ids.NextObjectSequence());
  CO_ASSIGN_OR_RETURN(InodePtr before, op.mds->tables->GetInode(fid));
  // Else it would wait for a truncation or move-out of a file that it refuses in the end.
  if (S_ISREG(before->mode)) {
    CO_RETURN_IF_ERROR(CheckAccess(op.caller, *before, kMayWrite));
    CO_RETURN_IF_ERROR(CheckEmpty(*before));
  }
  FidLocks::Guard guard = co_await LockQuiet(*op.mds, fid);
  Transaction transaction(*op.mds->tables);
  CO_ASSIGN_OR_RETURN(Inode * inode, transaction.Load(fid));
  CO_RETURN_IF_ERROR(CheckHasLayout(*inode));
  if (S_ISDIR(inode->mode))
    CO_RETURN_IF_ERROR(SetOnDirectory(op, inode, std::move(wanted)));
  else
    CO_RETURN_IF_ERROR(SetOnFile(op, inode, wanted, sequence, &transaction.batch()));
  transaction.Dirty(inode);
  TouchChanged(inode, op.now);
  proto::MetadataReply reply;
  CO_RETURN_IF_ERROR(FillReply(*op.mds, *inode, reply.mutable_layout()));
  CO_RETURN_IF_ERROR(co_await op.Commit(&transaction, reply));
  co_return reply;
}

Task<Reply> GetLayout(const Op& op, const proto::GetLayout& request) {
  CO_ASSIGN_OR_RETURN(InodePtr inode, op.mds->tables->GetInode(FromProto(request.fid())));
  CO_RETURN_IF_ERROR(CheckHasLayout(*inode));
  proto::MetadataReply reply;
  CO_RETURN_IF_ERROR(FillReply(*op.mds, *inode, reply.mutable_layout()));
  co_return reply;
}

}  // namespace nacre::mds
