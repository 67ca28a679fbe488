// Operations that take a name away: unlink, rmdir, rename.
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/stat.h>

#include <cerrno>

#include "client/core.h"

namespace nacre::client {

Task<Status> Core::Remove(const Caller& caller, Fid parent, std::string name, bool directory) {
  NACRE_ENTER(pass);
  proto::MetadataRequest request;
  *request.mutable_unlink()->mutable_parent() = ToProto(parent);
  request.mutable_unlink()->set_name(name);
  request.mutable_unlink()->set_directory(directory);
  InodePtr holder = inodes_->Get(parent);
  CO_RETURN_IF_ERROR(co_await mds_->SettleDirectory(holder));
  if (early_->TryRemove(caller, holder, name, request)) co_return OkStatus();
  auto reply = co_await mds_->Ask(caller, std::move(request));
  if (reply.ok()) DiscardIfGone(reply->attr().attr());
  co_return reply.status();
}

Task<Status> Core::Unlink(const Caller& caller, Fid parent, std::string name) {
  co_return co_await Remove(caller, parent, std::move(name), false);
}

Task<Status> Core::Rmdir(const Caller& caller, Fid parent, std::string name) {
  co_return co_await Remove(caller, parent, std::move(name), true);
}

// The files whose bytes the servers have to have before the rename: those that take another's place. `source`
// and `target`: what the names meant before; they may have been forgotten since, for want of memory.
std::vector<InodePtr> Core::TakingPlaces(const EarlyRename& rename, uint32_t flags) {
  const NameKnown source = FindName(*rename.from, rename.name);
  const NameKnown target = FindName(*rename.to, rename.new_name);
  const bool free = target.answer == NameKnown::Answer::kAbsent;
  if (options_.plant_rename_first || free || (flags & RENAME_NOREPLACE) != 0) return {};
  std::vector<InodePtr> files = {source.fid ? inodes_->Find(source.fid) : rename.source};
  if ((flags & RENAME_EXCHANGE) != 0) files.push_back(target.fid ? inodes_->Find(target.fid) : rename.target);
  std::erase(files, nullptr);
  return files;
}

// A client that is killed between the two leaves the old file.
Task<Status> Core::SendBeforeReplacing(const EarlyRename& rename, uint32_t flags) {
  for (InodePtr& file : TakingPlaces(rename, flags))
    CO_RETURN_IF_ERROR(co_await write_behind_->SendUnsent(file));
  co_return OkStatus();
}

Task<Status> Core::Rename(const Caller& caller, Fid parent, std::string name, Fid new_parent,
                          std::string new_name, uint32_t flags) {
  NACRE_ENTER(pass);
  proto::MetadataRequest request;
  proto::Rename* rename = request.mutable_rename();
  *rename->mutable_parent() = ToProto(parent);
  rename->set_name(name);
  *rename->mutable_new_parent() = ToProto(new_parent);
  rename->set_new_name(new_name);
  rename->set_flags(flags);
  InodePtr from = inodes_->Get(parent);
  InodePtr to = inodes_->Get(new_parent);
  const bool nothing = parent == new_parent && name == new_name;
  if (!nothing) {
    CO_RETURN_IF_ERROR(co_await mds_->SettleDirectory(from));
    if (to != from) CO_RETURN_IF_ERROR(co_await mds_->SettleDirectory(to));
    const EarlyRename named{from, to, name, new_name, nullptr, nullptr};
    CO_RETURN_IF_ERROR(co_await SendBeforeReplacing(named, flags));
    if (early_->TryRename(caller, from, to, request)) co_return OkStatus();
  }
  auto reply = co_await mds_->Ask(caller, std::move(request));
  if (reply.ok() && reply->entry().has_replaced()) DiscardIfGone(reply->entry().replaced());
  co_return reply.status();
}

// A file whose last name went and that nobody here has open: what was held back of it need not be written.
void Core::DiscardIfGone(const proto::Attr& attr) {
  InodePtr inode = inodes_->Find(FromProto(attr.fid()));
  if (inode == nullptr || S_ISDIR(attr.mode()) || attr.nlink() > 0) return;
  std::unique_lock lock(inode->mutex);
  if (inode->opens > 0) return;
  inode->gone = true;
  lock.unlock();
  data_->Discard(*inode);
}

}  // namespace nacre::client
