// Operations that make a name: create, mknod, mkdir, symlink, link.
#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>

#include "client/core.h"

namespace nacre::client {
namespace {

proto::MetadataRequest MknodRequest(Fid parent, const std::string& name, uint32_t mode, uint64_t rdev) {
  proto::MetadataRequest request;
  proto::Mknod* mknod = request.mutable_mknod();
  *mknod->mutable_parent() = ToProto(parent);
  mknod->set_name(name);
  mknod->set_mode(mode);
  mknod->set_rdev(rdev);
  return request;
}

}  // namespace

// The regular file that the name is known to mean; null: none, or that is not known.
InodePtr Core::KnownFile(Inode& directory, const std::string& name) {
  Duration unused{0};
  const Fid fid = knowledge_->Find(directory, name, &unused).fid;
  InodePtr inode = fid ? inodes_->Find(fid) : nullptr;
  if (inode == nullptr) return nullptr;
  std::lock_guard lock(inode->mutex);
  return inode->attr_known && S_ISREG(inode->attr.mode()) ? inode : nullptr;
}

Task<StatusOr<Created>> Core::Create(const Caller& caller, Fid parent, std::string name, uint32_t mode,
                                     int flags) {
  NACRE_ENTER(pass);
  InodePtr directory = inodes_->Get(parent);
  if (early_->MayAnswer()) {
    CO_RETURN_IF_ERROR(co_await mds_->SettleDirectory(directory));
    proto::MetadataRequest mknod = MknodRequest(parent, name, S_IFREG | (mode & 07777), 0);
    Created created;
    if (InodePtr made = early_->TryMake(caller, directory, name, std::move(mknod), &created.handle, flags)) {
      created.known = knowledge_->Answer(*made);
      co_return created;
    }
  }
  if ((flags & (O_TRUNC | O_EXCL)) == O_TRUNC) {
    // An open empties it in its order among the writes, and may hold that back.
    if (InodePtr file = KnownFile(*directory, name)) {
      Created created;
      CO_ASSIGN_OR_RETURN(created.handle, co_await OpenInside(caller, file->fid, flags & ~O_CREAT));
      created.known = knowledge_->Answer(*file);
      co_return created;
    }
  }
  proto::MetadataRequest request;
  proto::Create* create = request.mutable_create();
  *create->mutable_parent() = ToProto(parent);
  create->set_name(name);
  create->set_mode(mode);
  create->set_flags(static_cast<uint32_t>(flags));
  create->set_exclusive((flags & O_EXCL) != 0);
  const uint64_t held = leases_->reclaims();
  CO_ASSIGN_OR_RETURN(proto::MetadataReply reply, co_await mds_->Ask(caller, std::move(request)));
  if ((flags & O_TRUNC) != 0) data_->Discard(*inodes_->Get(FromProto(reply.entry().attr().fid())));
  InodePtr inode = knowledge_->Learn(reply.entry());
  {
    std::lock_guard guard(inode->mutex);
    inode->mutation = session_->mutations();
    if (inode->attr.size() == 0) inode->unsynced_whole = true;  // nothing of it has been written
    inode->NoteAlone(reply.entry().alone_under());
  }
  Created created;
  created.handle = handles_->New(caller, inode, flags);
  handles_->CountTold(*created.handle);
  if (leases_->reclaims() != held) co_await handles_->TellAgain(inode);
  created.known = knowledge_->Answer(*inode);
  co_return created;
}

Task<StatusOr<Known>> Core::MakeNode(const Caller& caller, Fid parent, std::string name,
                                     proto::MetadataRequest request) {
  InodePtr directory = inodes_->Get(parent);
  if (request.has_mknod() && early_->MayAnswer()) {
    CO_RETURN_IF_ERROR(co_await mds_->SettleDirectory(directory));
    if (InodePtr made = early_->TryMake(caller, directory, name, request))
      co_return knowledge_->Answer(*made);
  }
  CO_ASSIGN_OR_RETURN(proto::MetadataReply reply, co_await mds_->Ask(caller, std::move(request)));
  co_return Known{reply.entry().attr(), Duration(0)};
}

Task<StatusOr<Known>> Core::Mknod(const Caller& caller, Fid parent, std::string name, uint32_t mode,
                                  uint64_t rdev) {
  NACRE_ENTER(pass);
  proto::MetadataRequest request = MknodRequest(parent, name, mode, rdev);
  co_return co_await MakeNode(caller, parent, std::move(name), std::move(request));
}

Task<StatusOr<Known>> Core::Symlink(const Caller& caller, Fid parent, std::string name, std::string target) {
  NACRE_ENTER(pass);
  proto::MetadataRequest request = MknodRequest(parent, name, S_IFLNK | 0777, 0);
  request.mutable_mknod()->set_target(std::move(target));
  co_return co_await MakeNode(caller, parent, std::move(name), std::move(request));
}

Task<StatusOr<Known>> Core::Link(const Caller& caller, Fid fid, Fid parent, std::string name) {
  NACRE_ENTER(pass);
  proto::MetadataRequest request;
  *request.mutable_link()->mutable_fid() = ToProto(fid);
  *request.mutable_link()->mutable_parent() = ToProto(parent);
  request.mutable_link()->set_name(name);
  co_return co_await MakeNode(caller, parent, std::move(name), std::move(request));
}

}  // namespace nacre::client
