#include "server/metadata/ops/create_common.h"

#include <absl/strings/escaping.h>
#include <sys/stat.h>

#include <cerrno>

namespace nacre::mds {

namespace {

Status CheckOwnFid(const Op& op, const Fid& fid) {
  const uint64_t own = SessionSequence(op.session->id);
  if (own != 0 && fid.sequence == own && fid.object != 0 && fid.version == 0) return OkStatus();
  return ErrnoError(EPERM,
                    absl::StrFormat("session %d may not give the FID %s: its own have the sequence 0x%x",
                                    op.session->id, fid.ToString(), own));
}

// An inode that is there already would be written over.
Status CheckUnused(const Op& op, Transaction* transaction, const Fid& fid) {
  ASSIGN_OR_RETURN(const bool next, op.session->own_fids.TakeNext(*op.mds->tables, fid));
  if (next) return OkStatus();
  auto there = transaction->Load(fid);
  if (absl::IsNotFound(there.status())) return OkStatus();
  RETURN_IF_ERROR(there.status());
  return ErrnoError(EPERM, absl::StrFormat("the FID %s has been given before", fid.ToString()));
}

}  // namespace

Task<Status> Prepare(const Op& op, NewInode* wanted) {
  if (wanted->fid) {
    CO_RETURN_IF_ERROR(CheckOwnFid(op, wanted->fid));
  } else {
    CO_ASSIGN_OR_RETURN(wanted->fid, co_await op.mds->ids.NextFid());
  }
  if (!S_ISREG(wanted->mode)) co_return OkStatus();
  CO_ASSIGN_OR_RETURN(wanted->object_sequence, co_await op.mds->ids.NextObjectSequence());
  co_return OkStatus();
}

Status CheckNew(const Op& op, Transaction* transaction, const NewInode& wanted) {
  ASSIGN_OR_RETURN(Inode * directory, transaction->Load(wanted.parent));
  RETURN_IF_ERROR(CheckDirectory(*directory));
  RETURN_IF_ERROR(CheckAccess(op.caller, *directory, kMayExecute));
  RETURN_IF_ERROR(CheckLinked(*directory));
  if (SessionOfSequence(wanted.fid.sequence) != 0) RETURN_IF_ERROR(CheckUnused(op, transaction, wanted.fid));
  auto existing = transaction->Find(wanted.parent, wanted.name);
  if (existing.ok()) {
    return ErrnoError(EEXIST, absl::StrFormat("directory %s has an entry \"%s\" already",
                                              wanted.parent.ToString(), absl::CHexEscape(wanted.name)));
  }
  if (!absl::IsNotFound(existing.status())) return existing.status();
  RETURN_IF_ERROR(CheckDirectoryChange(op.caller, *directory));
  if (S_ISDIR(wanted.mode) && directory->nlink >= kMaxSubdirectories) {
    return ErrnoError(EMLINK, absl::StrFormat("directory %s has %d subdirectories: the limit",
                                              wanted.parent.ToString(), directory->nlink - 2));
  }
  return OkStatus();
}

StatusOr<Inode*> Make(const Op& op, Transaction* transaction, const NewInode& wanted, proto::Entry* reply) {
  ASSIGN_OR_RETURN(Inode * directory, transaction->Load(wanted.parent));
  Inode inode;
  inode.fid = wanted.fid;
  inode.mode = wanted.mode;
  inode.rdev = S_ISCHR(wanted.mode) || S_ISBLK(wanted.mode) ? wanted.rdev : 0;
  inode.nlink = S_ISDIR(wanted.mode) ? 2 : 1;
  InheritFrom(op.caller, *directory, &inode);
  inode.atime = inode.mtime = inode.ctime = inode.btime = op.now;
  inode.parent = wanted.parent;
  if (S_ISREG(wanted.mode)) {
    bool inherited = false;
    ASSIGN_OR_RETURN(LayoutTemplate layout, TemplateFor(*op.mds, *directory, &inherited));
    ASSIGN_OR_RETURN(inode.layout,
                     Instantiate(layout, op.Usable(), &op.mds->chooser, wanted.object_sequence));
    inode.inline_data = op.mds->options.inline_limit > 0;
    *reply->mutable_layout() = ToProto(inode.layout);
  }
  if (S_ISLNK(wanted.mode)) {
    inode.mode = S_IFLNK | 0777;
    inode.size = wanted.target.size();
    transaction->batch().Put(FidKey(Table::kBody, wanted.fid), wanted.target);
  }
  ASSIGN_OR_RETURN(inode.parent_cookie,
                   transaction->AddEntry(wanted.parent, wanted.name, wanted.fid, DirType(wanted.mode)));
  transaction->Dirty(directory);
  TouchWritten(directory, op.now);
  ++directory->size;
  if (S_ISDIR(wanted.mode)) ++directory->nlink;
  Inode* made = transaction->Create(std::move(inode));
  *reply->mutable_attr() = op.AttrOf(*made);
  if (op.TellsAttributes()) *reply->mutable_parent() = ToProto(*directory);
  return made;
}

}  // namespace nacre::mds
