#include <sys/stat.h>

#include <cerrno>

#include "rpc/convert.h"
#include "server/metadata/ops/ops.h"

namespace nacre::mds {
namespace {

StatusOr<Fid> Resolve(Mds& mds, const Inode& directory, const std::string& name) {
  if (name == ".") return directory.fid;
  if (name == "..") return directory.parent ? directory.parent : directory.fid;
  RETURN_IF_ERROR(CheckName(name));
  ASSIGN_OR_RETURN(Entry entry, mds.tables->FindEntry(directory.fid, name));
  return entry.fid;
}

}  // namespace

Task<Reply> Lookup(const Op& op, const proto::Lookup& request) {
  Mds& mds = *op.mds;
  CO_ASSIGN_OR_RETURN(InodePtr directory, GetDirectory(mds, FromProto(request.parent())));
  CO_RETURN_IF_ERROR(CheckAccess(op.caller, *directory, kMayExecute));
  CO_ASSIGN_OR_RETURN(Fid fid, Resolve(mds, *directory, request.name()));
  proto::MetadataReply reply;
  proto::Entry* entry = reply.mutable_entry();
  CO_ASSIGN_OR_RETURN(InodePtr inode, mds.tables->GetInode(fid));
  if (request.want_layout() && S_ISREG(inode->mode)) {
    // Locked, so that attributes and inline data belong together.
    FidLocks::Guard guard = co_await LockOne(mds, fid);
    CO_ASSIGN_OR_RETURN(inode, mds.tables->GetInode(fid));
    if (!mds.tails.Has(fid))  // else who wants to read asks once more, and waits for the OSTs
      CO_RETURN_IF_ERROR(FillLayout(mds, inode, entry->mutable_layout(), entry->mutable_data()));
  }
  *entry->mutable_attr() = ToProto(*inode);
  co_return reply;
}

}  // namespace nacre::mds
