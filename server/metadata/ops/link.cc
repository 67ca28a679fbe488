#include <absl/strings/escaping.h>
#include <sys/stat.h>

#include <cerrno>

#include "rpc/convert.h"
#include "server/metadata/ops/ops.h"

namespace nacre::mds {
namespace {

Status CheckLinkable(const Inode& inode) {
  if (S_ISDIR(inode.mode)) {
    return ErrnoError(EPERM,
                      absl::StrCat(inode.fid.ToString(), " is a directory: it cannot have a second name"));
  }
  if (inode.nlink == 0) return ErrnoError(ENOENT, absl::StrCat(inode.fid.ToString(), " has been removed"));
  if (inode.nlink < kMaxFileLinks) return OkStatus();
  return ErrnoError(EMLINK, absl::StrFormat("%s has %d links: the limit", inode.fid.ToString(), inode.nlink));
}

Status CheckFree(Transaction* transaction, const Fid& parent, const std::string& name) {
  auto existing = transaction->Find(parent, name);
  if (absl::IsNotFound(existing.status())) return OkStatus();
  RETURN_IF_ERROR(existing.status());
  return ErrnoError(EEXIST, absl::StrFormat("directory %s has an entry \"%s\" already", parent.ToString(),
                                            absl::CHexEscape(name)));
}

}  // namespace

Task<Reply> Link(const Op& op, const proto::Link& request) {
  CO_RETURN_IF_ERROR(CheckName(request.name()));
  const Fid fid = FromProto(request.fid()), parent = FromProto(request.parent());
  std::vector<Fid> fids;
  fids.push_back(fid);
  fids.push_back(parent);
  FidLocks::Guard guard = co_await op.mds->locks.Lock(std::move(fids));
  Transaction transaction(*op.mds->tables);
  CO_ASSIGN_OR_RETURN(Inode * directory, transaction.Load(parent));
  CO_RETURN_IF_ERROR(CheckDirectory(*directory));
  CO_RETURN_IF_ERROR(CheckAccess(op.caller, *directory, kMayExecute));
  CO_RETURN_IF_ERROR(CheckLinked(*directory));
  CO_ASSIGN_OR_RETURN(Inode * inode, transaction.Load(fid));
  CO_RETURN_IF_ERROR(CheckFree(&transaction, parent, request.name()));
  CO_RETURN_IF_ERROR(CheckDirectoryChange(op.caller, *directory));
  CO_RETURN_IF_ERROR(CheckLinkable(*inode));
  CO_ASSIGN_OR_RETURN(uint64_t cookie,
                      transaction.AddEntry(parent, request.name(), fid, DirType(inode->mode)));
  transaction.batch().Put(ReverseLinkKey(fid, parent, cookie), {});
  transaction.Dirty(inode);
  ++inode->nlink;
  TouchChanged(inode, op.now);
  transaction.Dirty(directory);
  ++directory->size;
  TouchWritten(directory, op.now);
  proto::MetadataReply reply;
  *reply.mutable_entry()->mutable_attr() = op.AttrOf(*inode);
  if (op.TellsAttributes()) *reply.mutable_entry()->mutable_parent() = ToProto(*directory);
  CO_RETURN_IF_ERROR(co_await op.Commit(&transaction, reply));
  co_return reply;
}

}  // namespace nacre::mds
