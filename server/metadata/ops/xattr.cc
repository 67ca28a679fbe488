// Extended attributes, by the rules of Linux's VFS: user. on files and directories by their permission bits,
// trusted. for root alone, security. written by root and read by all. POSIX ACLs and everything else:
// EOPNOTSUPP.
#include <sys/stat.h>
#include <sys/xattr.h>

#include <cerrno>
#include <functional>

#include "rpc/convert.h"
#include "server/metadata/ops/ops.h"
#include "server/metadata/privileges.h"

namespace nacre::mds {
namespace {

constexpr size_t kMaxXattrName = 255;
constexpr size_t kMaxXattrValue = 65536;
constexpr size_t kMaxXattrNames = 65536;  // bytes of all names with their ends: what listxattr(2) can return
constexpr size_t kNamesAtOnce = 64;       // read at once

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

// A file's capability is removed by anybody: the kernel asks for that in the name of whoever truncates the
// file or writes to it, after it has allowed that to him; removexattr(2) it leaves to those with CAP_SETFCAP.
Status CheckXattrRemoval(const Caller& caller, const Inode& inode, std::string_view name) {
  if (name == kCapabilityXattr && S_ISREG(inode.mode)) return OkStatus();
  return CheckXattrAccess(caller, inode, name, /*write=*/true);
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
  return OkStatus();
}

// Calls `each` with the names of the inode's attributes.
Status ForEachXattr(Mds& mds, const Inode& inode, const std::function<void(std::string_view)>& each) {
  const std::string prefix = FidKey(Table::kXattr, inode.fid);
  auto visit = [&](const KvEntry& entry) -> Status {
    each(std::string_view(entry.key).substr(prefix.size()));
    return OkStatus();
  };
  return ForEachEntry(*mds.tables, prefix, visit, kNamesAtOnce);
}

// One more name must leave the list of them as long as a program can ask for.
Status CheckRoom(Mds& mds, const Inode& inode, std::string_view name) {
  if ((inode.xattrs + 1) * (kMaxXattrName + 1) <= kMaxXattrNames) return OkStatus();
  size_t bytes = name.size() + 1;
  RETURN_IF_ERROR(ForEachXattr(mds, inode, [&](std::string_view there) { bytes += there.size() + 1; }));
  if (bytes <= kMaxXattrNames) return OkStatus();
  return ErrnoError(ENOSPC,
                    absl::StrFormat("the names of the %d attributes of %s and of \"%s\" take %d bytes: at "
                                    "most %d are allowed",
                                    inode.xattrs, inode.fid.ToString(), name, bytes, kMaxXattrNames));
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
  if (!exists) CO_RETURN_IF_ERROR(CheckRoom(*op.mds, *inode, request.name()));
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
  CO_RETURN_IF_ERROR(ForEachXattr(*op.mds, *inode, [&](std::string_view name) {
    if (HasPrefix(name, "trusted.") && !op.caller.IsRoot()) return;
    out->add_names(name.data(), name.size());
  }));
  co_return reply;
}

Task<Reply> RemoveXattr(const Op& op, const proto::RemoveXattr& request) {
  const Fid fid = FromProto(request.fid());
  FidLocks::Guard guard = co_await LockOne(*op.mds, fid);
  Transaction transaction(*op.mds->tables);
  CO_ASSIGN_OR_RETURN(Inode * inode, transaction.Load(fid));
  CO_RETURN_IF_ERROR(CheckXattrRemoval(op.caller, *inode, request.name()));
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
