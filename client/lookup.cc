// Lookup, getattr, readlink, statfs: answered from what is known here (knowledge.h), or by the MDS.
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "client/core.h"
#include "client/permission.h"
#include "common/limits.h"

namespace nacre::client {
Task<StatusOr<Known>> Core::Lookup(const Caller& caller, Fid parent, std::string name,
                                   Duration* absent_until) {
  *absent_until = Duration(0);
  NACRE_ENTER(pass);
  if (name.size() > kMaxName) {
    co_return ErrnoError(ENAMETOOLONG,
                         absl::StrFormat("a name of %d bytes; %d are the most", name.size(), kMaxName));
  }
  if (!options_.caching) {
    proto::MetadataRequest request;
    *request.mutable_lookup()->mutable_parent() = ToProto(parent);
    request.mutable_lookup()->set_name(name);
    CO_ASSIGN_OR_RETURN(proto::MetadataReply reply, co_await Ask(caller, std::move(request)));
    co_return Known{reply.entry().attr(), Duration(0)};
  }

  InodePtr directory = inodes_->Get(parent);
  Duration until{0};
  const NameKnown known = knowledge_->Find(caller, *directory, name, &until);
  if (InodePtr inode = known.fid ? inodes_->Find(known.fid) : nullptr) {
    if (std::optional<Known> answer = knowledge_->Stat(*inode)) {
      answer->until = std::min(answer->until, until);
      co_return *std::move(answer);
    }
  }
  if (known.answer == NameKnown::Answer::kAbsent) {
    *absent_until = until;
    co_return ErrnoError(ENOENT, absl::StrFormat("no entry '%s'", name));
  }
  co_return co_await LookUpAtMds(caller, directory, name);
}

Task<StatusOr<Known>> Core::LookUpAtMds(const Caller& caller, InodePtr directory, std::string name) {
  FillToken token = BeginFill(*directory);
  Learning learning = leases_->BeginLearning();
  proto::MetadataRequest request;
  *request.mutable_lookup()->mutable_parent() = ToProto(directory->fid);
  request.mutable_lookup()->set_name(name);
  request.mutable_lookup()->set_want_layout(true);
  request.mutable_lookup()->set_want_lease(options_.caching);
  auto reply = co_await Ask(caller, std::move(request));
  if (reply.ok()) TakeScopes(&learning, *reply);
  token.scope = leases_->For(learning, directory->fid);
  const bool fill = token.scope != nullptr;
  if (!reply.ok()) {
    if (fill && ToErrno(reply.status()) == ENOENT) FillName(*directory, token, name, Fid{});
    co_return reply.status();
  }
  if (fill) FillName(*directory, token, name, FromProto(reply->entry().attr().fid()));
  co_return knowledge_->LearnFound(learning, reply->entry());
}

Task<StatusOr<Known>> Core::Refresh(const Caller& caller, Fid fid, bool want_layout) {
  proto::MetadataRequest request;
  *request.mutable_getattr()->mutable_fid() = ToProto(fid);
  request.mutable_getattr()->set_want_layout(want_layout);
  request.mutable_getattr()->set_want_lease(options_.caching);
  Learning learning = leases_->BeginLearning();
  CO_ASSIGN_OR_RETURN(proto::MetadataReply reply, co_await Ask(caller, std::move(request)));
  TakeScopes(&learning, reply);
  const proto::AttrReply& answer = reply.attr();
  InodePtr inode = want_layout ? inodes_->Get(fid) : inodes_->Find(fid);
  if (inode == nullptr) co_return Known{answer.attr(), Duration(0)};
  Knowledge::Learn(*inode, answer.attr(), want_layout ? &answer.layout() : nullptr,
                   want_layout ? &answer.data() : nullptr);
  leases_->Cover(learning, *inode, answer.attr());
  co_return knowledge_->Answer(*inode);
}

Task<StatusOr<Known>> Core::Getattr(const Caller& caller, Fid fid, HandlePtr handle) {
  NACRE_ENTER(pass);
  if (handle != nullptr) CO_RETURN_IF_ERROR(entrance_.Check(*handle));
  if (InodePtr inode = handle != nullptr ? handle->inode : inodes_->Find(fid)) {
    if (std::optional<Known> known = knowledge_->Stat(*inode)) co_return *std::move(known);
  }
  co_return co_await Refresh(caller, fid, false);
}

Task<Status> Core::LoadFile(InodePtr inode) {
  auto content = co_await LoadContent(std::move(inode));
  co_return content.status();
}

Task<StatusOr<FileContent>> Core::LoadContent(InodePtr inode) {
  {
    std::lock_guard lock(inode->mutex);
    if (knowledge_->Trusts(*inode) || inode->ContentLeased() || inode->data_scope != nullptr)
      if (auto content = inode->CurrentContent()) co_return *std::move(content);
  }
  Caller system;
  for (int attempt = 0; attempt <= kRaces; ++attempt) {
    auto known = co_await Refresh(system, inode->fid, true);
    if (!known.ok()) co_return known.status();
    std::lock_guard lock(inode->mutex);
    if (auto content = inode->CurrentContent()) co_return *std::move(content);
    // Newer attributes, without layout and data, may have overtaken these.
  }
  co_return ErrnoError(
      EIO, absl::StrFormat("file %s: the MDS sent neither data nor a layout", inode->fid.ToString()));
}

bool Core::IsCurrent(const proto::Attr& attr) { return knowledge_->IsCurrent(attr); }

Task<StatusOr<std::string>> Core::Readlink(const Caller& caller, Fid fid) {
  NACRE_ENTER(pass);
  proto::MetadataRequest request;
  *request.mutable_readlink()->mutable_fid() = ToProto(fid);
  CO_ASSIGN_OR_RETURN(proto::MetadataReply reply, co_await Ask(caller, std::move(request)));
  co_return reply.readlink().target();
}

Task<StatusOr<proto::StatfsReply>> Core::Statfs(const Caller& caller) {
  NACRE_ENTER(pass);
  proto::MetadataRequest request;
  request.mutable_statfs();
  CO_ASSIGN_OR_RETURN(proto::MetadataReply reply, co_await Ask(caller, std::move(request)));
  co_return reply.statfs();
}

}  // namespace nacre::client
