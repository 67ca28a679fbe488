// Operations that take a name away: unlink, rmdir, rename. A file that is open here stays readable and
// writable; the MDS, which under the lease does not know of the handles, is told to keep it.
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/stat.h>

#include <cerrno>

#include "client/core.h"
#include "client/settling.h"

namespace nacre::client {

// From here on opens go to the MDS, so that the order of open and removal is decided in one place.
void Core::BeginRemoval(const InodePtr& inode, bool* keep_open) {
  if (inode == nullptr) {
    *keep_open = true;  // which file it is will be known from the reply only
    return;
  }
  std::lock_guard lock(inode->mutex);
  ++inode->removing;
  *keep_open = inode->opens > 0;
}

void Core::EndRemoval(const InodePtr& inode) {
  if (inode == nullptr) return;
  std::lock_guard lock(inode->mutex);
  --inode->removing;
}

// `attr`: of what lost a name. `kept`: the MDS was asked to keep it open if it was the last one.
void Core::AfterRemoval(const proto::Attr& attr, bool kept) {
  Fid fid = FromProto(attr.fid());
  if (!fid) return;
  InodePtr inode = inodes_->Get(fid);
  bool unused = false;
  {
    std::lock_guard lock(inode->mutex);
    inode->Apply(attr);
    inode->mutation = session_->mutations();
    if (S_ISDIR(attr.mode()) || attr.nlink() > 0) return;
    unused = inode->opens == 0;
    inode->kept_open = kept && !unused;
    inode->gone = unused;
    if (unused && kept) ++inode->closing;
  }
  if (!unused) return;
  DiscardData(*inode);
  inodes_->Retire(*inode);
  if (kept) Background(CloseAtMds(std::move(inode), 0, false, epoch_));
}

Task<Status> Core::Remove(const Caller& caller, Fid parent, std::string name, bool directory) {
  NACRE_ENTER(pass);
  proto::MetadataRequest request;
  *request.mutable_unlink()->mutable_parent() = ToProto(parent);
  request.mutable_unlink()->set_name(name);
  request.mutable_unlink()->set_directory(directory);
  InodePtr holder = inodes_->Get(parent);
  if (cached()) (void)co_await LearnName(caller, holder, name);
  CO_RETURN_IF_ERROR(co_await SettleDirectory(holder));
  if (TryRemoveBehind(caller, holder, name, request)) co_return OkStatus();
  if (!cached()) {
    auto reply = co_await Ask(caller, std::move(request));
    if (reply.ok()) DiscardIfGone(reply->attr().attr());
    co_return reply.status();
  }
  NameLock lock = co_await NameLock::Take(holder, name);
  NameKnown known = FindName(*holder, name);
  InodePtr inode = known.fid ? inodes_->Find(known.fid) : nullptr;
  Settling settling(*this, {holder, inode});
  bool keep_open = false;
  Frozen frozen;  // a flight that arrives behind the removal would make the file's objects anew
  if (!directory) BeginRemoval(inode, &keep_open);
  if (!directory && inode != nullptr && !keep_open) frozen = Frozen(cache_, &inode->data);
  if (!directory && inode != nullptr) co_await cache_->WaitFlights(inode->data, 0, UINT64_MAX);
  request.mutable_unlink()->set_keep_open(keep_open);
  auto reply = co_await Ask(caller, std::move(request));
  if (!directory) EndRemoval(inode);
  if (!reply.ok()) {
    if (ToErrno(reply.status()) == EIO) lock.SetUnknown();
    co_return reply.status();
  }
  lock.Set(Fid{});
  if (reply->attr().has_parent()) Learn(reply->attr().parent());
  AfterRemoval(reply->attr().attr(), keep_open);
  co_return OkStatus();
}

Task<Status> Core::Unlink(const Caller& caller, Fid parent, std::string name) {
  co_return co_await Remove(caller, parent, std::move(name), false);
}

Task<Status> Core::Rmdir(const Caller& caller, Fid parent, std::string name) {
  co_return co_await Remove(caller, parent, std::move(name), true);
}

// The files whose bytes the servers have to have before the rename: those that take another's place. `source`
// and `target`: what the names meant before; they may have been forgotten since, for want of memory.
std::vector<InodePtr> Core::TakingPlaces(const BehindRename& rename, uint32_t flags) {
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
Task<Status> Core::SendBeforeReplacing(const BehindRename& rename, uint32_t flags) {
  for (InodePtr& file : TakingPlaces(rename, flags)) CO_RETURN_IF_ERROR(co_await SendUnsent(file));
  co_return OkStatus();
}

bool Core::HoldsBackBeforeReplacing(const BehindRename& rename, uint32_t flags) {
  for (const InodePtr& file : TakingPlaces(rename, flags)) {
    std::lock_guard lock(file->mutex);
    if (file->IsUnsent()) return true;
  }
  return false;
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
  if (!cached() && !nothing) {
    CO_RETURN_IF_ERROR(co_await SettleDirectory(from));
    if (to != from) CO_RETURN_IF_ERROR(co_await SettleDirectory(to));
    const BehindRename named{from, to, name, new_name, nullptr, nullptr};
    CO_RETURN_IF_ERROR(co_await SendBeforeReplacing(named, flags));
    if (TryRenameBehind(caller, from, to, request)) co_return OkStatus();
  }
  if (!cached() || nothing) {
    auto reply = co_await Ask(caller, std::move(request));
    if (reply.ok() && reply->entry().has_replaced()) DiscardIfGone(reply->entry().replaced());
    co_return reply.status();
  }
  BehindRename meant{from, to, name, new_name, nullptr, nullptr};
  meant.source = co_await LearnName(caller, from, name);
  meant.target = co_await LearnName(caller, to, new_name);
  CO_RETURN_IF_ERROR(co_await queue_->WaitForRoom());
  CO_RETURN_IF_ERROR(co_await SendBeforeReplacing(meant, flags));
  if (TryRenameBehind(caller, from, to, request)) co_return OkStatus();
  NameLock from_lock, to_lock;
  for (int attempt = 0;; ++attempt) {
    if (std::tie(parent, name) < std::tie(new_parent, new_name)) {  // everybody in the same order
      from_lock = co_await NameLock::Take(from, name);
      to_lock = co_await NameLock::Take(to, new_name);
    } else {
      to_lock = co_await NameLock::Take(to, new_name);
      from_lock = co_await NameLock::Take(from, name);
    }
    // There may be a file to be replaced only since these were free. Nobody waits for a server with them.
    if (attempt == kRaces || !HoldsBackBeforeReplacing(meant, flags)) break;
    from_lock = NameLock();
    to_lock = NameLock();
    CO_RETURN_IF_ERROR(co_await SendBeforeReplacing(meant, flags));
  }
  NameKnown target = FindName(*to, new_name);
  InodePtr replaced = target.fid ? inodes_->Find(target.fid) : nullptr;
  const Fid source = FindName(*from, name).fid;
  Settling settling(*this, {from, to, replaced, source ? inodes_->Find(source) : nullptr});
  bool keep_open = false;
  bool replaces =
      (flags & (RENAME_EXCHANGE | RENAME_NOREPLACE)) == 0 && target.answer != NameKnown::Answer::kAbsent;
  Frozen frozen;
  if (replaces) BeginRemoval(replaced, &keep_open);
  if (replaces && replaced != nullptr) {
    frozen = Frozen(cache_, &replaced->data);
    co_await cache_->WaitFlights(replaced->data, 0, UINT64_MAX);
  }
  rename->set_keep_open(keep_open);
  auto reply = co_await Ask(caller, std::move(request));
  if (replaces) EndRemoval(replaced);
  if (!reply.ok()) {
    if (ToErrno(reply.status()) == EIO) {
      from_lock.SetUnknown();
      to_lock.SetUnknown();
    }
    co_return reply.status();
  }
  const proto::Entry& entry = reply->entry();
  Learn(entry.attr());
  if (entry.has_parent()) Learn(entry.parent());
  if (entry.has_old_parent()) Learn(entry.old_parent());
  to_lock.Set(FromProto(entry.attr().fid()));
  if ((flags & RENAME_EXCHANGE) != 0) {
    if (entry.has_replaced()) Learn(entry.replaced());
    if (entry.has_replaced()) {
      from_lock.Set(FromProto(entry.replaced().fid()));
    } else {
      from_lock.SetUnknown();
    }
    co_return OkStatus();
  }
  // Renaming one link of a file over another link of it leaves both.
  bool same = entry.has_replaced() && FromProto(entry.replaced().fid()) == FromProto(entry.attr().fid());
  if (!same) from_lock.Set(Fid{});
  if (entry.has_replaced() && !same) AfterRemoval(entry.replaced(), keep_open);
  co_return OkStatus();
}

// A file whose last name went and that nobody here has open: what was held back of it need not be written.
void Core::DiscardIfGone(const proto::Attr& attr) {
  InodePtr inode = inodes_->Find(FromProto(attr.fid()));
  if (inode == nullptr || S_ISDIR(attr.mode()) || attr.nlink() > 0) return;
  std::unique_lock lock(inode->mutex);
  if (inode->opens > 0) return;
  inode->gone = true;
  lock.unlock();
  DiscardData(*inode);
}

}  // namespace nacre::client
