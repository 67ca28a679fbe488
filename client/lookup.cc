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
    CO_ASSIGN_OR_RETURN(proto::MetadataReply reply, co_await mds_->Ask(caller, std::move(request)));
    co_return Known{reply.entry().attr(), Duration(0)};
  }

  InodePtr directory = inodes_->Get(parent);
  Duration until{0};
  const NameKnown known = knowledge_->Find(caller, *directory, name, &until);
  if (InodePtr inode = known.fid ? inodes_->Find(known.fid) : nullptr) {
    if (std::optional<Known> answer = knowledge_->Stat(*inode)) {
      answer->name_until = until;
      co_return *std::move(answer);
    }
  }
  if (known.answer == NameKnown::Answer::kAbsent) {
    *absent_until = until;
    co_return ErrnoError(ENOENT, absl::StrFormat("no entry '%s'", name));
  }
  CO_ASSIGN_OR_RETURN(Known found, co_await mds_->LookUp(caller, directory, name));
  knowledge_->PromiseName(*directory, name, &found);
  co_return found;
}

Task<StatusOr<Known>> Core::Getattr(const Caller& caller, Fid fid, HandlePtr handle) {
  NACRE_ENTER(pass);
  if (handle != nullptr) CO_RETURN_IF_ERROR(entrance_.Check(*handle));
  if (InodePtr inode = handle != nullptr ? handle->inode : inodes_->Find(fid)) {
    if (std::optional<Known> known = knowledge_->Stat(*inode)) co_return *std::move(known);
  }
  co_return co_await mds_->Refresh(caller, fid, false);
}

bool Core::IsCurrent(const proto::Attr& attr) { return knowledge_->IsCurrent(attr); }

Task<StatusOr<std::string>> Core::Readlink(const Caller& caller, Fid fid) {
  NACRE_ENTER(pass);
  proto::MetadataRequest request;
  *request.mutable_readlink()->mutable_fid() = ToProto(fid);
  CO_ASSIGN_OR_RETURN(proto::MetadataReply reply, co_await mds_->Ask(caller, std::move(request)));
  co_return reply.readlink().target();
}

Task<StatusOr<proto::StatfsReply>> Core::Statfs(const Caller& caller) {
  NACRE_ENTER(pass);
  proto::MetadataRequest request;
  request.mutable_statfs();
  CO_ASSIGN_OR_RETURN(proto::MetadataReply reply, co_await mds_->Ask(caller, std::move(request)));
  co_return reply.statfs();
}

}  // namespace nacre::client
