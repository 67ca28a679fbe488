// Extended attributes, by the rules of Linux's VFS: user. on files and directories by their permission bits,
// trusted. for root alone, security. written by root and read by all. POSIX ACLs and everything else:
// EOPNOTSUPP.
#include <sys/stat.h>
#include <sys/xattr.h>

#include <cerrno>

#include "rpc/convert.h"
#include "server/metadata/ops/ops.h"

namespace nacre::mds {
namespace {

constexpr size_t kMaxXattrName = 255;
constexpr size_t kMaxXattrValue = 65536;
constexpr uint32_t kMaxXattrs = 1000;

bool HasPrefix(std::string_view name, std::string_view prefix) {
  return name.substr(0, prefix.size()) == prefix;
}

Status CheckXattrName(std::string_view name) {
  if (name.size() > kMaxXattrName) {
    return ErrnoError(ERANGE, absl::StrFormat("an attribute's name of %d bytes: at most %d are allowed",
                                              name.size(), kMaxXattrName));
  }
  for (std::string_view prefix : {"user.", "trusted.", "security."}) {
    if (!HasPrefix(name, prefix)) continue;
    if (name.size() > prefix.size()) return OkStatus();
    return ErrnoError(EINVAL, absl::StrFormat("the attribute name \"%s\" ends behind its namespace", name));
  }
  return ErrnoError(
      EOPNOTSUPP,
      absl::StrFormat("attribute \"%s\": only user., trusted. and security. are kept here", name));
}

Status CheckUserAccess(const Caller& caller, const Inode& inode, bool write) {
  if (!S_ISREG(inode.mode) && !S_ISDIR(inode.mode)) {
    return ErrnoError(write ? EPERM : ENODATA,
                      absl::StrFormat("user. attributes exist on files and directories only; %s has mode %o",
                                      inode.fid.ToString(), inode.mode));
  }
  bool sticky = S_ISDIR(inode.mode) && (inode.mode & S_ISVTX) != 0;
  if (write && sticky) RETURN_IF_ERROR(CheckOwner(caller, inode));
  return CheckAccess(caller, inode, write ? kMayWrite : kMayRead);
}

Status CheckXattrAccess(const Caller& caller, const Inode& inode, std::string_view name, bool write) {
  RETURN_IF_ERROR(CheckXattrName(name));
  if (HasPrefix(name, "user.")) return CheckUserAccess(caller, inode, write);
  if (caller.IsRoot() || (!write && HasPrefix(name, "security."))) return OkStatus();
  return ErrnoError(write ? EPERM : ENODATA, absl::StrFormat("attribute \"%s\" is for root", name));
}

Status NoAttribute(const Inode& inode, std::string_view name) {
  return ErrnoError(ENODATA, absl::StrFormat("%s has no attribute \"%s\"", inode.fid.ToString(), name));
}

Status CheckExistence(const Inode& inode, const proto::SetXattr& request, bool exists) {
  if (exists && (request.flags() & XATTR_CREATE) != 0) {
    return ErrnoError(
        EEXIST, absl::StrFormat("%s has an attribute \"%s\" already", inode.fid.ToString(), request.name()));
  }
  if (!exists && (request.flags() & XATTR_REPLACE) != 0) return NoAttribute(inode, request.name());
  if (exists || inode.xattrs < kMaxXattrs) return OkStatus();
  return ErrnoError(ENOSPC,
                    absl::StrFormat("%s has %d attributes: the limit", inode.fid.ToString(), inode.xattrs));
}

StatusOr<bool> Exists(Mds& mds, const std::string& key) {
  auto value = mds.tables->Get(key);
  if (absl::IsNotFound(value.status())) return false;
  RETURN_IF_ERROR(value.status());
  return true;
}

}  // namespace

Task<Reply> GetXattr(const Op& op, const proto::GetXattr& request) {
  CO_ASSIGN_OR_RETURN(InodePtr inode, op.mds->tables->GetInode(FromProto(request.fid())));
  CO_RETURN_IF_ERROR(CheckXattrAccess(op.caller, *inode, request.name(), /*write=*/false));
  if (inode->xattrs == 0) co_return NoAttribute(*inode, request.name());
  auto value = op.mds->tables->Get(XattrKey(inode->fid, request.name()));
  if (absl::IsNotFound(value.status())) co_return NoAttribute(*inode, request.name());
  CO_RETURN_IF_ERROR(value.status());
  proto::MetadataReply reply;
  reply.mutable_xattr()->set_value(*std::move(value));
  co_return reply;
}

Task<Reply> SetXattr(const Op& op, const proto::SetXattr& request) {
  if (request.value().size() > kMaxXattrValue) {
    co_return ErrnoError(E2BIG, absl::StrFormat("an attribute's value of %d bytes: at most %d are allowed",
                                                request.value().size(), kMaxXattrValue));
  }
  if ((request.flags() & ~static_cast<uint32_t>(XATTR_CREATE | XATTR_REPLACE)) != 0) {
    co_return ErrnoError(EINVAL, absl::StrFormat("setxattr flags 0x%x", request.flags()));
  }
  const Fid fid = FromProto(request.fid());
  FidLocks::Guard guard = co_await LockOne(*op.mds, fid);
  Transaction transaction(*op.mds->tables);
  CO_ASSIGN_OR_RETURN(Inode * inode, transaction.Load(fid));
  CO_RETURN_IF_ERROR(CheckXattrAccess(op.caller, *inode, request.name(), /*write=*/true));
  std::string key = XattrKey(fid, request.name());
  CO_ASSIGN_OR_RETURN(bool exists, Exists(*op.mds, key));
  CO_RETURN_IF_ERROR(CheckExistence(*inode, request, exists));
  transaction.batch().Put(std::move(key), request.value());
  transaction.Dirty(inode);
  TouchChanged(inode, op.now);
  if (!exists) ++inode->xattrs;
  proto::MetadataReply reply;
  *reply.mutable_attr()->mutable_attr() = ToProto(*inode);
  CO_RETURN_IF_ERROR(co_await op.Commit(&transaction, reply));
  co_return reply;
}

Task<Reply> ListXattr(const Op& op, const proto::ListXattr& request) {
  CO_ASSIGN_OR_RETURN(InodePtr inode, op.mds->tables->GetInode(FromProto(request.fid())));
  proto::MetadataReply reply;
  proto::ListXattrReply* out = reply.mutable_list_xattr();
  if (inode->xattrs == 0) co_return reply;
  std::string prefix = FidKey(Table::kXattr, inode->fid);
  CO_ASSIGN_OR_RETURN(auto found, op.mds->tables->Scan(prefix, PrefixEnd(prefix), kMaxXattrs));
  for (const KvEntry& entry : found) {
    std::string_view name = std::string_view(entry.key).substr(prefix.size());
    if (HasPrefix(name, "trusted.") && !op.caller.IsRoot()) continue;
    out->add_names(name.data(), name.size());
  }
  co_return reply;
}

Task<Reply> RemoveXattr(const Op& op, const proto::RemoveXattr& request) {
  const Fid fid = FromProto(request.fid());
  FidLocks::Guard guard = co_await LockOne(*op.mds, fid);
  Transaction transaction(*op.mds->tables);
  CO_ASSIGN_OR_RETURN(Inode * inode, transaction.Load(fid));
  CO_RETURN_IF_ERROR(CheckXattrAccess(op.caller, *inode, request.name(), /*write=*/true));
  std::string key = XattrKey(fid, request.name());
  CO_ASSIGN_OR_RETURN(bool exists, Exists(*op.mds, key));
  if (!exists) co_return NoAttribute(*inode, request.name());
  transaction.batch().Erase(std::move(key));
  transaction.Dirty(inode);
  TouchChanged(inode, op.now);
  --inode->xattrs;
  proto::MetadataReply reply;
  *reply.mutable_attr()->mutable_attr() = ToProto(*inode);
  CO_RETURN_IF_ERROR(co_await op.Commit(&transaction, reply));
  co_return reply;
}

}  // namespace nacre::mds
