// Extended attributes, the virtual nacre.* ones among them.
#include <sys/stat.h>

#include <cerrno>

#include "client/core.h"
#include "client/layout_text.h"
#include "client/settling.h"

namespace nacre::client {
namespace {

constexpr std::string_view kVirtual = "nacre.";
constexpr std::string_view kCapability = "security.capability";

// The lease of its directory under which the file is covered, if that is WRITE and good; else null.
ScopePtr WriteScopeOf(Inode& inode) {
  std::lock_guard lock(inode.mutex);
  return inode.IsCovered() && inode.covered->writes() ? inode.covered : nullptr;
}

}  // namespace

Task<StatusOr<std::string>> Core::GetXattr(const Caller& caller, Fid fid, std::string name) {
  NACRE_ENTER(pass);
  if (name.starts_with(kVirtual)) co_return co_await GetVirtual(caller, fid, std::move(name));
  if (NoXattrs(fid)) co_return ErrnoError(ENODATA, absl::StrFormat("no attribute '%s'", name));
  proto::MetadataRequest request;
  *request.mutable_get_xattr()->mutable_fid() = ToProto(fid);
  request.mutable_get_xattr()->set_name(std::move(name));
  CO_ASSIGN_OR_RETURN(proto::MetadataReply reply, co_await mds_->Ask(caller, std::move(request)));
  co_return reply.xattr().value();
}

// Whether it is known without asking that there are none.
bool Core::NoXattrs(Fid fid) {
  InodePtr inode = inodes_->Find(fid);
  if (inode == nullptr) return false;
  std::lock_guard lock(inode->mutex);
  return knowledge_->Trusts(*inode) && !inode->attr.has_xattrs();
}

Task<StatusOr<std::string>> Core::GetVirtual(const Caller& caller, Fid fid, std::string name) {
  if (name == "nacre.fid") co_return fid.ToString();
  if (name == "nacre.mds") co_return environment_.metadata->address();
  if (name == "nacre.place") {  // what libnacre needs to open the same file in a session of its own
    co_return absl::StrFormat("fid=%s\nmds=%s\ntransport=%s\n", fid.ToString(),
                              environment_.metadata->address(), options_.transport);
  }
  if (name == "nacre.sync") {  // the kernel tells a FUSE filesystem of no sync(2)
    CO_RETURN_IF_ERROR(co_await SyncMount());
    co_return "";
  }
  if (name != kLayoutXattr && name != kStripesXattr) {
    co_return ErrnoError(
        ENODATA, absl::StrFormat(
                     "no attribute '%s': there are %s, %s, nacre.fid, nacre.mds, nacre.place and nacre.sync",
                     name, kLayoutXattr, kStripesXattr));
  }
  proto::MetadataRequest request;
  *request.mutable_get_layout()->mutable_fid() = ToProto(fid);
  CO_ASSIGN_OR_RETURN(proto::MetadataReply reply, co_await mds_->Ask(caller, std::move(request)));
  const proto::LayoutReply& answer = reply.layout();
  const bool directory = S_ISDIR(answer.attr().mode());
  if (name == kLayoutXattr)
    co_return directory ? FormatLayout(answer.directory_default()) : FormatLayout(answer.layout());
  if (directory) co_return DescribeDirectory(fid, answer.directory_default(), answer.inherited());
  co_return DescribeFile(fid, answer.layout(), answer.attr().inline_data());
}

Task<Status> Core::SetXattr(const Caller& caller, Fid fid, std::string name, std::string value, int flags) {
  NACRE_ENTER(pass);
  proto::MetadataRequest request;
  if (name == kLayoutXattr) {
    CO_ASSIGN_OR_RETURN(*request.mutable_set_layout()->mutable_layout(), ParseLayout(value));
    *request.mutable_set_layout()->mutable_fid() = ToProto(fid);
    co_return co_await SetLayout(caller, inodes_->Get(fid), std::move(request));
  }
  if (name.starts_with(kVirtual))
    co_return ErrnoError(EPERM, absl::StrFormat("attribute '%s' cannot be set", name));
  *request.mutable_set_xattr()->mutable_fid() = ToProto(fid);
  request.mutable_set_xattr()->set_name(std::move(name));
  request.mutable_set_xattr()->set_value(std::move(value));
  request.mutable_set_xattr()->set_flags(static_cast<uint32_t>(flags));
  co_return co_await ChangeXattr(caller, fid, std::move(request));
}

// The MDS refuses it for a file that has data, so it has to hear first of what is held back here.
Task<Status> Core::SetLayout(const Caller& caller, InodePtr inode, proto::MetadataRequest request) {
  RangeLock::Guard range = co_await moving_out_->LockWhole(inode, MayGiveUp::kNo);
  CO_RETURN_IF_ERROR(co_await write_behind_->SendAll(inode));
  AsyncMutex::Guard meta = co_await inode->meta.Lock();
  Settling settling(*early_, {inode});
  CO_ASSIGN_OR_RETURN(proto::MetadataReply reply, co_await mds_->Ask(caller, std::move(request)));
  if (!reply.layout().has_attr()) co_return OkStatus();
  const proto::Layout& layout = reply.layout().layout();
  Knowledge::Learn(*inode, reply.layout().attr(), &layout);
  co_return OkStatus();
}

Task<Status> Core::RemoveXattr(const Caller& caller, Fid fid, std::string name) {
  NACRE_ENTER(pass);
  if (name.starts_with(kVirtual))
    co_return ErrnoError(EPERM, absl::StrFormat("attribute '%s' cannot be removed", name));
  if (NoXattrs(fid)) co_return ErrnoError(ENODATA, absl::StrFormat("no attribute '%s'", name));
  proto::MetadataRequest request;
  *request.mutable_remove_xattr()->mutable_fid() = ToProto(fid);
  request.mutable_remove_xattr()->set_name(std::move(name));
  co_return co_await ChangeXattr(caller, fid, std::move(request));
}

// Whether a write has to take the file's capability first.
bool Core::MayHaveCapability(Inode& inode) {
  std::lock_guard lock(inode.mutex);
  if (!inode.attr_known || !inode.attr.has_xattrs()) return false;
  return !inode.IsCovered() || inode.no_capability_under != inode.covered;
}

// A file's capability does not outlive a write to it, whoever writes. It is taken once under WRITE: only this
// client can give the file another one.
Task<Status> Core::TakeCapability(InodePtr inode) {
  const ScopePtr writer = WriteScopeOf(*inode);
  proto::MetadataRequest request;
  *request.mutable_remove_xattr()->mutable_fid() = ToProto(inode->fid);
  request.mutable_remove_xattr()->set_name(std::string(kCapability));
  Caller system;
  Status taken = co_await ChangeXattr(system, inode->fid, std::move(request));
  if (!taken.ok() && ToErrno(taken) != ENODATA) co_return taken;
  std::lock_guard lock(inode->mutex);
  inode->no_capability_under = writer;
  co_return OkStatus();
}

// The reply has the new attributes, or has_xattrs would lie. The inode is made if need be: an answer from
// before, which comes later, finds newer attributes then.
Task<Status> Core::ChangeXattr(const Caller& caller, Fid fid, proto::MetadataRequest request) {
  InodePtr inode = inodes_->Get(fid);
  Settling settling(*early_, {inode});
  CO_ASSIGN_OR_RETURN(proto::MetadataReply reply, co_await mds_->Ask(caller, std::move(request)));
  std::lock_guard lock(inode->mutex);
  inode->no_capability_under.reset();
  inode->mutation = session_->mutations();
  if (reply.attr().has_attr()) {
    inode->Apply(reply.attr().attr());
  } else {
    inode->attr_known = false;
  }
  co_return OkStatus();
}

Task<StatusOr<std::vector<std::string>>> Core::ListXattr(const Caller& caller, Fid fid) {
  NACRE_ENTER(pass);
  if (NoXattrs(fid)) co_return std::vector<std::string>();
  proto::MetadataRequest request;
  *request.mutable_list_xattr()->mutable_fid() = ToProto(fid);
  CO_ASSIGN_OR_RETURN(proto::MetadataReply reply, co_await mds_->Ask(caller, std::move(request)));
  co_return std::vector<std::string>(reply.list_xattr().names().begin(), reply.list_xattr().names().end());
}

}  // namespace nacre::client
