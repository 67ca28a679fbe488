// Changes of names and attributes that are answered before the MDS has done them, under the filesystem lease
// (docs/decisions/0022-metadata-write-behind.md).
//
// Each Try… function decides from what is known here whether the outcome is certain. If so, it changes what
// is known exactly as the MDS will change it, change numbers included, and pushes the mutation; all of that
// with behind_mutex_ held, so that the queue has the order in which the changes were made. If not, it changes
// nothing, and the caller asks the MDS, with what the request touches marked by Settling.
#include <linux/fs.h>
#include <sys/stat.h>

#include <cerrno>

#include "client/core.h"
#include "client/permission.h"
#include "common/limits.h"
#include "common/log.h"
#include "common/metrics.h"

namespace nacre::client {
namespace {

bool PlainName(const std::string& name) {
  return !name.empty() && name.size() <= kMaxName && name != "." && name != ".." &&
         name.find('/') == name.npos && name.find('\0') == name.npos;
}

// With the directory's mutex held: whether this caller may change what this name means there.
bool MayChangeEntry(const Inode& directory, const Caller& caller) {
  const proto::Attr& attr = directory.attr;
  return directory.attr_known && directory.settling == 0 && S_ISDIR(attr.mode()) && attr.nlink() > 0 &&
         MayAccess(attr, caller, kMayWrite | kMayExecute);
}

// What an fsync says of a change that was refused: an error that fsync(2) has.
Status ForFsync(const Status& why) {
  const int error = ToErrno(why);
  if (error == ENOSPC || error == EDQUOT || error == EROFS) return why;
  return ErrnoError(EIO, std::string(why.message()));
}

// Whether the caller must own what it takes out of the directory.
bool IsSticky(const Inode& directory, const Caller& caller) {
  return (directory.attr.mode() & S_ISVTX) != 0 && caller.uid != 0 && caller.uid != directory.attr.uid();
}

// Setuid and setgid of files are for the MDS to judge.
bool PlainType(const Caller& caller, const proto::Mknod& mknod) {
  const uint32_t mode = mknod.mode();
  if (S_ISREG(mode)) return (mode & (S_ISUID | S_ISGID)) == 0;
  if (S_ISLNK(mode)) return !mknod.target().empty() && mknod.target().size() <= kMaxSymlink;
  if (S_ISCHR(mode) || S_ISBLK(mode)) return caller.uid == 0;
  return S_ISDIR(mode) || S_ISFIFO(mode) || S_ISSOCK(mode);
}

void TouchEntries(proto::Attr* directory, const proto::Time& now, int by, bool subdirectory) {
  directory->set_size(directory->size() + static_cast<uint64_t>(by));
  if (subdirectory) directory->set_nlink(directory->nlink() + static_cast<uint32_t>(by));
  *directory->mutable_mtime() = *directory->mutable_ctime() = now;
  directory->set_change(directory->change() + 1);
}

// The attributes that the MDS will give it (server/metadata/ops/create_common.cc).
proto::Attr NewAttr(const Caller& caller, const proto::Attr& directory, const proto::MetadataRequest& request,
                    bool inline_data) {
  const proto::Mknod& mknod = request.mknod();
  const bool is_directory = S_ISDIR(mknod.mode()), is_file = S_ISREG(mknod.mode());
  const bool inherits = (directory.mode() & S_ISGID) != 0;
  proto::Attr attr;
  *attr.mutable_fid() = mknod.fid();
  attr.set_mode(S_ISLNK(mknod.mode()) ? S_IFLNK | 0777 : mknod.mode());
  if (inherits && is_directory) attr.set_mode(attr.mode() | S_ISGID);
  attr.set_nlink(is_directory ? 2 : 1);
  attr.set_uid(caller.uid);
  attr.set_gid(inherits ? directory.gid() : caller.gid);
  if (S_ISCHR(mknod.mode()) || S_ISBLK(mknod.mode())) attr.set_rdev(mknod.rdev());
  attr.set_size(mknod.target().size());
  *attr.mutable_atime() = *attr.mutable_mtime() = *attr.mutable_ctime() = *attr.mutable_btime() =
      request.time();
  attr.set_change(1);
  *attr.mutable_parent() = directory.fid();
  attr.set_inline_data(is_file && inline_data);
  attr.set_layout_generation(is_file ? 1 : 0);
  return attr;
}

bool Removable(const Inode& victim, const Caller& caller, bool sticky, bool directory) {
  const proto::Attr& attr = victim.attr;
  if (!victim.attr_known || victim.settling > 0 || attr.nlink() == 0) return false;
  if (S_ISDIR(attr.mode()) != directory || (directory && attr.size() > 0)) return false;
  return !sticky || caller.uid == attr.uid();
}

// The owner of a file may set its mode and times, root its owner as well; the MDS judges what setuid and
// setgid bits make of it.
bool PlainSetattr(const Inode& inode, const Caller& caller, const SetAttributes& set) {
  const proto::Attr& attr = inode.attr;
  constexpr uint32_t kSet = S_ISUID | S_ISGID;
  if (!inode.attr_known || inode.settling > 0 || attr.nlink() == 0) return false;
  if (set.size || set.kill_suid || inode.pending.kill_suid) return false;
  if (((attr.mode() | set.mode.value_or(0)) & kSet) != 0 && !S_ISDIR(attr.mode())) return false;
  if (caller.uid == 0) return true;
  return caller.uid == attr.uid() && !set.uid && !set.gid && (set.mode.value_or(0) & kSet) == 0;
}

void ApplySetattr(const proto::Setattr& set, const proto::Time& now, proto::Attr* attr) {
  if (set.set_mode()) attr->set_mode((attr->mode() & S_IFMT) | (set.mode() & 07777));
  if (set.set_uid()) attr->set_uid(set.uid());
  if (set.set_gid()) attr->set_gid(set.gid());
  if (set.set_atime()) *attr->mutable_atime() = set.atime_now() ? now : set.atime();
  if (set.set_mtime()) *attr->mutable_mtime() = set.mtime_now() ? now : set.mtime();
  *attr->mutable_ctime() = now;
  attr->set_change(attr->change() + 1);
}

}  // namespace

// --- what the MDS alone decides ---

Core::Settling::Settling(Core& core, std::vector<InodePtr> inodes) : core_(core), inodes_(std::move(inodes)) {
  std::lock_guard order(core.behind_mutex_);  // what was answered before is in the queue by now
  for (const InodePtr& inode : inodes_) {
    if (inode == nullptr) continue;
    std::lock_guard lock(inode->mutex);
    ++inode->settling;
  }
}

Core::Settling::~Settling() {
  const uint64_t mutations = core_.session_->mutations();
  for (const InodePtr& inode : inodes_) {
    if (inode == nullptr) continue;
    std::lock_guard lock(inode->mutex);
    --inode->settling;
    inode->mutation = std::max(inode->mutation, mutations);
  }
}

// --- the queue ---

// behind_mutex_ is held.
void Core::PushBehind(const Caller& caller, proto::MetadataRequest request, BehindChange change) {
  SetCaller(caller, &request);
  queue_->Push(epoch_, std::move(request), [this, change](const Reply& reply) {
    EndBehind(change, reply);
    for (const InodePtr& inode : {change.inode, change.replaced}) {
      if (inode != nullptr) RetireIfGone(*inode);
    }
  });
  early_answered_ = queue_->pushed();
  const uint64_t mutations = session_->mutations();
  for (const InodePtr& inode : {change.inode, change.directory, change.new_directory, change.replaced}) {
    if (inode == nullptr) continue;
    std::lock_guard lock(inode->mutex);
    inode->mutation = mutations;
  }
}

void Core::RetireIfGone(Inode& inode) {
  {
    std::lock_guard lock(inode.mutex);
    if (!inode.gone) return;
  }
  inodes_->Retire(inode);
}

// The MDS has come to it. Its attributes are known here already; a file's layout is news.
void Core::EndBehind(const BehindChange& change, const StatusOr<proto::MetadataReply>& reply) {
  if (!reply.ok() && session_->epoch() != epoch_) {  // evicted
    NoteError(*change.inode, reply.status());
    return NoteMountError(reply.status());
  }
  if (!reply.ok()) return Distrust(change, reply.status());
  const proto::Attr& attr = reply->has_entry() ? reply->entry().attr() : reply->attr().attr();
  if (attr.change() != change.number) {
    return Distrust(change, ErrnoError(EIO, absl::StrFormat("it is at change %d there, and at %d here",
                                                            attr.change(), change.number)));
  }
  if (reply->entry().layout().components_size() == 0) return;
  std::lock_guard lock(change.inode->mutex);
  if (change.inode->attr.layout_generation() == reply->entry().layout().generation())
    change.inode->ApplyLayout(reply->entry().layout());
}

// Nothing known of what it touched is true any more.
void Core::Distrust(const BehindChange& change, const Status& why) {
  static Counter& refused = GetCounter("client.refused_behind");
  refused.Add();
  LogError("file %s%s: a change that was answered is not what the MDS has made of it: %s",
           change.inode->fid.ToString(), change.name.empty() ? "" : absl::StrFormat(", '%s'", change.name),
           std::string(why.message()));
  const Status told = ForFsync(why);
  NoteError(*change.inode, told);
  NoteMountError(told);
  {
    std::lock_guard lock(change.inode->mutex);
    change.inode->attr_known = false;
  }
  if (change.directory != nullptr) DistrustName(*change.directory, change.name);
  if (change.new_directory != nullptr) DistrustName(*change.new_directory, change.new_name);
  if (change.replaced == nullptr) return;
  std::lock_guard lock(change.replaced->mutex);
  change.replaced->attr_known = false;
}

void Core::DistrustName(Inode& directory, const std::string& name) {
  std::lock_guard lock(directory.mutex);
  directory.attr_known = false;
  directory.names.Distrust(name);
  ++directory.version;
}

// --- what is answered early ---

InodePtr Core::TryMakeBehind(const Caller& caller, const InodePtr& directory, const std::string& name,
                             proto::MetadataRequest request) {
  proto::Mknod& mknod = *request.mutable_mknod();
  if (!MayAnswerEarly() || !PlainName(name) || !PlainType(caller, mknod)) return nullptr;
  std::lock_guard order(behind_mutex_);
  std::optional<NameLock> lock = NameLock::TryTake(directory, name);
  if (!lock || own_fid_.sequence == 0 || own_fid_.object == UINT32_MAX) return nullptr;
  *request.mutable_time() = ToProto(environment_.clock.Wall());
  proto::Attr attr;
  {
    std::lock_guard guard(directory->mutex);
    if (!MayChangeEntry(*directory, caller)) return nullptr;
    if (directory->names.Find(name).answer != NameKnown::Answer::kAbsent) return nullptr;
    if (S_ISDIR(mknod.mode()) && directory->attr.nlink() >= kMaxSubdirectories) return nullptr;
    ++own_fid_.object;
    *mknod.mutable_fid() = ToProto(own_fid_);
    attr = NewAttr(caller, directory->attr, request, inline_limit_ > 0);
    TouchEntries(&directory->attr, request.time(), 1, S_ISDIR(mknod.mode()));
  }
  InodePtr inode = inodes_->Get(own_fid_);
  {
    std::lock_guard guard(inode->mutex);
    inode->attr = std::move(attr);
    inode->attr_known = true;
    inode->unsynced_whole = true;  // nothing of it has been written
    if (S_ISDIR(mknod.mode())) inode->names.SetComplete();
    if (inode->attr.inline_data()) inode->inline_bytes = std::make_shared<std::string>();
  }
  PushBehind(caller, std::move(request), {inode, 1, directory, name});
  lock->Set(inode->fid);
  return inode;
}

bool Core::DropLink(Inode& inode, const proto::Time& now, bool* keep_open) {
  proto::Attr& attr = inode.attr;
  const bool is_directory = S_ISDIR(attr.mode());
  attr.set_nlink(is_directory ? 0 : attr.nlink() - 1);
  *attr.mutable_ctime() = now;
  attr.set_change(attr.change() + 1);
  if (is_directory || attr.nlink() > 0) return false;
  inode.kept_open = *keep_open = inode.opens > 0;
  inode.gone = !inode.kept_open;
  return inode.gone;
}

bool Core::TryRemoveBehind(const Caller& caller, const InodePtr& directory, const std::string& name,
                           proto::MetadataRequest request) {
  if (!MayAnswerEarly() || !PlainName(name)) return false;
  const bool is_directory = request.unlink().directory();
  NameKnown known = FindName(*directory, name);
  InodePtr victim = known.fid ? inodes_->Find(known.fid) : nullptr;
  if (victim == nullptr) return false;
  Frozen frozen(cache_, &victim->data);  // a flight that arrives behind the removal would make objects anew
  if (cache_->InFlight(victim->data)) return false;

  std::unique_lock order(behind_mutex_);
  std::optional<NameLock> lock = NameLock::TryTake(directory, name);
  if (!lock) return false;
  bool sticky = false;
  {
    std::lock_guard guard(directory->mutex);
    if (!MayChangeEntry(*directory, caller)) return false;
    if (directory->names.Find(name).fid != victim->fid) return false;
    sticky = IsSticky(*directory, caller);
  }
  *request.mutable_time() = ToProto(environment_.clock.Wall());
  BehindChange change{victim, 0, directory, name};
  bool unused = false;
  {
    std::lock_guard guard(victim->mutex);
    if (!Removable(*victim, caller, sticky, is_directory)) return false;
    bool keep_open = false;
    unused = DropLink(*victim, request.time(), &keep_open);
    request.mutable_unlink()->set_keep_open(keep_open);
    change.number = victim->attr.change();
  }
  {
    std::lock_guard guard(directory->mutex);
    TouchEntries(&directory->attr, request.time(), -1, is_directory);
  }
  PushBehind(caller, std::move(request), std::move(change));
  lock->Set(Fid{});
  lock.reset();
  order.unlock();
  if (unused) DiscardData(*victim);
  return true;
}

std::optional<Core::BehindRename> Core::FindRename(const InodePtr& from, const InodePtr& to,
                                                   const proto::Rename& rename) {
  const NameKnown source = FindName(*from, rename.name()), target = FindName(*to, rename.new_name());
  BehindRename found{from, to, rename.name(), rename.new_name(), nullptr, nullptr};
  if (source.fid) found.source = inodes_->Find(source.fid);
  if (target.fid) found.target = inodes_->Find(target.fid);
  const bool free = target.answer == NameKnown::Answer::kAbsent;
  if (found.source == nullptr || found.source == found.target) return std::nullopt;
  if (!free && (found.target == nullptr || rename.flags() != 0)) return std::nullopt;
  return found;
}

// With behind_mutex_ and both names held. A directory neither goes elsewhere nor over anything.
bool Core::MayRename(const Caller& caller, const BehindRename& rename) {
  bool from_sticky = false, to_sticky = false;
  {
    std::lock_guard lock(rename.from->mutex);
    if (!MayChangeEntry(*rename.from, caller)) return false;
    if (rename.from->names.Find(rename.name).fid != rename.source->fid) return false;
    from_sticky = IsSticky(*rename.from, caller);
  }
  {
    std::lock_guard lock(rename.to->mutex);
    if (!MayChangeEntry(*rename.to, caller)) return false;
    const NameKnown known = rename.to->names.Find(rename.new_name);
    if (known.fid != (rename.target != nullptr ? rename.target->fid : Fid{})) return false;
    if (known.answer == NameKnown::Answer::kUnknown) return false;
    to_sticky = IsSticky(*rename.to, caller);
  }
  if (rename.target != nullptr) {
    std::lock_guard lock(rename.target->mutex);
    if (!Removable(*rename.target, caller, to_sticky, false)) return false;
  }
  std::lock_guard lock(rename.source->mutex);
  const proto::Attr& attr = rename.source->attr;
  if (!rename.source->attr_known || rename.source->settling > 0 || attr.nlink() == 0) return false;
  if (S_ISDIR(attr.mode()) && (rename.from != rename.to || rename.target != nullptr)) return false;
  return !from_sticky || caller.uid == attr.uid();
}

// Changes what is known, but for the names. Returns whether nobody needs the inode any more that was
// replaced.
bool Core::ApplyRename(const BehindRename& rename, const proto::Time& now, bool* keep_open) {
  {
    std::lock_guard lock(rename.source->mutex);
    *rename.source->attr.mutable_ctime() = now;
    if (rename.source->attr.has_parent()) *rename.source->attr.mutable_parent() = ToProto(rename.to->fid);
    rename.source->attr.set_change(rename.source->attr.change() + 1);
  }
  bool unused = false;
  if (rename.target != nullptr) {
    std::lock_guard lock(rename.target->mutex);
    unused = DropLink(*rename.target, now, keep_open);
  }
  const bool replaces = rename.target != nullptr, same = rename.from == rename.to;
  {
    std::lock_guard lock(rename.from->mutex);
    TouchEntries(&rename.from->attr, now, same && !replaces ? 0 : -1, false);
  }
  if (same) return unused;
  std::lock_guard lock(rename.to->mutex);
  TouchEntries(&rename.to->attr, now, replaces ? 0 : 1, false);
  return unused;
}

bool Core::TryRenameBehind(const Caller& caller, const InodePtr& from, const InodePtr& to,
                           proto::MetadataRequest request) {
  const uint32_t flags = request.rename().flags();
  if (!MayAnswerEarly() || (flags & ~static_cast<uint32_t>(RENAME_NOREPLACE)) != 0) return false;
  if (!PlainName(request.rename().name()) || !PlainName(request.rename().new_name())) return false;
  std::optional<BehindRename> rename = FindRename(from, to, request.rename());
  if (!rename) return false;
  Frozen frozen;
  if (rename->target != nullptr) frozen = Frozen(cache_, &rename->target->data);
  if (rename->target != nullptr && cache_->InFlight(rename->target->data)) return false;

  std::unique_lock order(behind_mutex_);
  std::optional<NameLock> from_lock = NameLock::TryTake(from, rename->name), to_lock;
  if (from_lock) to_lock = NameLock::TryTake(to, rename->new_name);
  if (!to_lock || !MayRename(caller, *rename)) return false;
  *request.mutable_time() = ToProto(environment_.clock.Wall());
  bool keep_open = false;
  const bool unused = ApplyRename(*rename, request.time(), &keep_open);
  request.mutable_rename()->set_keep_open(keep_open);
  BehindChange change{rename->source, 0, from, rename->name, to, rename->new_name, rename->target};
  {
    std::lock_guard lock(rename->source->mutex);
    change.number = rename->source->attr.change();
  }
  PushBehind(caller, std::move(request), std::move(change));
  from_lock->Set(Fid{});
  to_lock->Set(rename->source->fid);
  from_lock.reset();
  to_lock.reset();
  order.unlock();
  if (unused) DiscardData(*rename->target);
  return true;
}

bool Core::TrySetattrBehind(const Caller& caller, const InodePtr& inode, const SetAttributes& set,
                            proto::MetadataRequest request) {
  if (!MayAnswerEarly()) return false;
  std::lock_guard order(behind_mutex_);
  *request.mutable_time() = ToProto(environment_.clock.Wall());
  BehindChange change{inode, 0, nullptr, {}};
  {
    std::lock_guard guard(inode->mutex);
    if (!PlainSetattr(*inode, caller, set)) return false;
    ApplySetattr(request.setattr(), request.time(), &inode->attr);
    if (set.mtime || set.mtime_now) inode->pending.mtime.reset();
    change.number = inode->attr.change();
  }
  PushBehind(caller, std::move(request), std::move(change));
  return true;
}

}  // namespace nacre::client
