#include "client/early_changes.h"

#include <sys/stat.h>

#include <cerrno>

#include "client/attribute_rules.h"
#include "client/data_cache.h"
#include "client/permission.h"
#include "client/plain_change.h"
#include "common/limits.h"
#include "common/log.h"
#include "common/metrics.h"
#include "rpc/convert.h"

namespace nacre::client {
namespace {

// Returns the error that fsync reports for a change that was refused: one that fsync(2) has.
Status ForFsync(const Status& why) {
  const int error = ToErrno(why);
  if (error == ENOSPC || error == EDQUOT || error == EROFS) return why;
  return ErrnoError(EIO, std::string(why.message()));
}

void DistrustName(Inode& directory, const std::string& name) {
  std::lock_guard lock(directory.mutex);
  directory.attr_known = false;
  directory.names.Distrust(name);
  ++directory.version;
}

}  // namespace

EarlyChanges::EarlyChanges(const Environment& environment, const MdtRoom& room, InodeTable& inodes,
                           HeldLeases& leases, const Entrance& entrance, Session& session,
                           MetadataQueue& queue, Handles& handles, KernelCache& kernel, Hooks hooks)
    : environment_(environment),
      room_(room),
      inodes_(inodes),
      leases_(leases),
      entrance_(entrance),
      session_(session),
      queue_(queue),
      handles_(handles),
      kernel_(kernel),
      hooks_(std::move(hooks)) {}

// --- whether there are any ---

void EarlyChanges::OnConnected(const proto::ConnectReply& reply, bool fresh, uint64_t epoch) {
  allowed_ = reply.names_behind();
  if (!fresh) return;
  const Order order = TakeOrder();
  own_fids_.Begin(epoch, reply.fid_sequence());
}

void EarlyChanges::EndBefore(uint64_t epoch) {
  const Order order = TakeOrder();
  own_fids_.EndBefore(epoch);
}

bool EarlyChanges::MayChange(const Inode& inode) const {
  return inode.attr_known && inode.settling == 0 && inode.own_changes == 0 && inode.IsCovered() &&
         inode.covered->writes() && !changing_unknown_.contains(FromProto(inode.attr.parent()));
}

// --- the queue ---

// With the order held.
void EarlyChanges::Push(const Caller& caller, proto::MetadataRequest request, EarlyChange change) {
  SetCaller(caller, &request);
  request.set_change_only(true);
  queue_.Push(entrance_.epoch(), std::move(request), [this, change](const Reply& reply) {
    End(change, reply);
    for (const InodePtr& inode : {change.inode, change.replaced}) {
      if (inode != nullptr) RetireIfGone(*inode);
    }
  });
  answered_ = queue_.pushed();
  const uint64_t mutations = session_.mutations();
  for (const InodePtr& inode : {change.inode, change.directory, change.new_directory, change.replaced}) {
    if (inode == nullptr) continue;
    std::lock_guard lock(inode->mutex);
    inode->mutation = mutations;
  }
}

void EarlyChanges::PushTold(const InodePtr& inode, uint64_t change, proto::MetadataRequest request,
                            MetadataQueue::Done then) {
  *request.mutable_time() = ToProto(environment_.clock.Wall());
  request.set_change_only(true);
  auto done = [inode, change, then = std::move(then)](const Reply& reply) mutable {
    if (!reply.ok() || reply->attr().attr().change() != change) {
      std::lock_guard guard(inode->mutex);
      inode->attr_known = false;
    }
    then(reply);
  };
  queue_.Push(entrance_.epoch(), std::move(request), std::move(done));
  const uint64_t mutations = session_.mutations();
  std::lock_guard guard(inode->mutex);
  inode->mutation = mutations;
}

void EarlyChanges::RetireIfGone(Inode& inode) {
  {
    std::lock_guard lock(inode.mutex);
    if (!inode.gone) return;
  }
  inodes_.Retire(inode);
}

// The MDS has come to it. Its attributes are known here already; a file's layout is news.
void EarlyChanges::End(const EarlyChange& change, const Reply& reply) {
  NameBorn(change, reply);
  if (!reply.ok() && session_.epoch() != entrance_.epoch()) {  // evicted
    NoteError(*change.inode, reply.status());
    return handles_.NoteError(reply.status());
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
void EarlyChanges::Distrust(const EarlyChange& change, const Status& why) {
  static Counter& refused = GetCounter("client.refused_behind");
  refused.Add();
  LogError("file %s%s: a change that was answered is not what the MDS has made of it: %s",
           change.inode->fid.ToString(), change.name.empty() ? "" : absl::StrFormat(", '%s'", change.name),
           std::string(why.message()));
  const Status told = ForFsync(why);
  NoteError(*change.inode, told);
  handles_.NoteError(told);
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

// --- what is answered early ---

// With the order and the directory's mutex held: whether this caller may change what a name means there.
bool EarlyChanges::MayChangeEntry(const Inode& directory, const Caller& caller) const {
  const proto::Attr& attr = directory.attr;
  return MayChange(directory) && S_ISDIR(attr.mode()) && attr.nlink() > 0 &&
         MayAccess(attr, caller, kMayWrite | kMayExecute);
}

// Counts before the file's lease can go back: whoever ends that waits for the order, and tells the MDS of
// the handle then.
HandlePtr EarlyChanges::OpenMade(const Caller& caller, const InodePtr& made, int flags) {
  HandlePtr handle = handles_.New(caller, made, flags);
  handles_.CountUntold(*handle, [](const Inode&) { return true; });
  return handle;
}

InodePtr EarlyChanges::TryMake(const Caller& caller, const InodePtr& directory, const std::string& name,
                               proto::MetadataRequest request, HandlePtr* opened, int flags) {
  proto::Mknod& mknod = *request.mutable_mknod();
  if (!MayAnswer() || !PlainName(name) || !PlainType(caller, mknod)) return nullptr;
  const bool is_directory = S_ISDIR(mknod.mode());
  const Order order = TakeOrder();
  std::optional<NameLock> lock = NameLock::TryTake(directory, name);
  if (!lock || !own_fids_.any()) return nullptr;
  *request.mutable_time() = ToProto(environment_.clock.Wall());
  Fid fid;
  proto::Attr attr;
  ScopePtr scope;
  {
    std::lock_guard guard(directory->mutex);
    if (!MayChangeEntry(*directory, caller)) return nullptr;
    if (FindAmongAll(*directory, name).answer != NameKnown::Answer::kAbsent) return nullptr;
    if (is_directory && directory->attr.nlink() >= kMaxSubdirectories) return nullptr;
    fid = own_fids_.Next();
    *mknod.mutable_fid() = ToProto(fid);
    attr = NewAttr(caller, directory->attr, request, room_.inline_limit() > 0);
    TouchEntries(&directory->attr, request.time(), 1, is_directory);
    scope = directory->covered;
  }
  InodePtr inode = inodes_.Get(fid);
  EarlyChange change{inode, 1, directory, name};
  if (is_directory) {
    scope = change.born = std::make_shared<Scope>(inode->fid, 0, inodes_.NextEvent(), scope->quiet_since, 0);
    scope->AllowWrites();
    request.set_want_lease(true);
  }
  {
    std::lock_guard guard(inode->mutex);
    inode->attr = std::move(attr);
    inode->attr_known = true;
    inode->content_change = 1;
    inode->covered = inode->alone_under = inode->made_under = scope;
    inode->scope = change.born;
    inode->unsynced_whole = true;  // nothing of it has been written
    if (is_directory) inode->names.SetComplete();
    if (inode->attr.inline_data()) inode->inline_bytes = std::make_shared<std::string>();
  }
  if (opened != nullptr) *opened = OpenMade(caller, inode, flags);
  Push(caller, std::move(request), std::move(change));
  lock->Set(inode->fid);
  return inode;
}

// The MDS has made the directory, or not. A lease that has ended here goes back now that it has a name.
void EarlyChanges::NameBorn(const EarlyChange& change, const Reply& reply) {
  if (change.born == nullptr) return;
  uint64_t lease = 0;
  if (reply.ok()) {
    for (const proto::Lease& one : reply->directory_leases())
      if (FromProto(one.resource()) == change.inode->fid) lease = one.id();
  }
  if (leases_.NameBorn(*change.inode, change.born, lease)) hooks_.give_back(change.inode, change.born);
}

// Makes the kernel forget the attributes of a file that has lost its name in the directory: from when the MDS
// has heard of that, another client that has it open may change it unannounced. A file without a name that
// nobody has open here is left to the kernel, which asks again by itself for what it has removed the name of;
// a process may still have it as O_PATH, but hardly so that it looks before the removal has returned.
void EarlyChanges::ForgetRemoved(Inode& directory, Inode& removed) {
  {
    std::lock_guard lock(removed.mutex);
    if (removed.gone) return;
  }
  {
    std::lock_guard lock(directory.mutex);
    const ScopePtr& scope = directory.scope;
    if (scope == nullptr || scope->promised() <= environment_.clock.Now()) return;
  }
  kernel_.ForgetAttributes(removed.fid);
}

// With the inode's mutex held: whether its last name may be removed early. Without a name no lease covers the
// file, its pages in the kernel or its data here. Pages of a file that is not open here are read by nobody:
// whoever opens it once more, by O_PATH, has the kernel drop them first, as nothing covers it then
// (KeptPages::For). Data that is held back is dropped: another client that has the file open would miss it.
bool EarlyChanges::MayLoseName(const Inode& inode) {
  if (inode.outgrowing != nullptr || (inode.PagesNeedCover() && inode.opens > 0)) return false;
  if (inode.data_scope == nullptr) return true;
  const bool only_here = inode.made_under != nullptr && inode.made_under == inode.data_scope;
  return inode.opens == 0 && (only_here || !inode.IsUnsent());
}

bool EarlyChanges::TryRemove(const Caller& caller, const InodePtr& directory, const std::string& name,
                             proto::MetadataRequest request) {
  if (!MayAnswer() || !PlainName(name)) return false;
  const bool is_directory = request.unlink().directory();
  NameKnown known = FindName(*directory, name);
  InodePtr victim = known.fid ? inodes_.Find(known.fid) : nullptr;
  if (victim == nullptr) return false;
  Frozen frozen(victim->data_cache,
                &victim->data);  // a flight that arrives behind the removal would make objects anew
  if (victim->data_cache->InFlight(victim->data)) return false;

  Order order = TakeOrder();
  std::optional<NameLock> lock = NameLock::TryTake(directory, name);
  if (!lock) return false;
  bool sticky = false;
  {
    std::lock_guard guard(directory->mutex);
    if (!MayChangeEntry(*directory, caller)) return false;
    if (FindAmongAll(*directory, name).fid != victim->fid) return false;
    sticky = IsSticky(*directory, caller);
  }
  *request.mutable_time() = ToProto(environment_.clock.Wall());
  EarlyChange change{victim, 0, directory, name};
  bool unused = false;
  ScopePtr ended;  // of the directory that goes
  {
    std::lock_guard guard(victim->mutex);
    if (!MayChange(*victim) || !Removable(*victim, caller, sticky, is_directory)) return false;
    if (!MayLoseName(*victim)) return false;
    bool keep_open = false;
    unused = victim->DropLink(request.time(), &keep_open);
    request.mutable_unlink()->set_keep_open(keep_open);
    change.number = victim->attr.change();
    if (victim->scope != nullptr) {
      victim->NoteLeaving(*victim->scope);
      ended = victim->EndScope();
    }
  }
  {
    std::lock_guard guard(directory->mutex);
    TouchEntries(&directory->attr, request.time(), -1, is_directory);
  }
  if (!is_directory) ForgetRemoved(*directory, *victim);
  Push(caller, std::move(request), std::move(change));
  lock->Set(Fid{});
  lock.reset();
  order.unlock();
  if (ended != nullptr) hooks_.give_back(victim, std::move(ended));
  if (unused) hooks_.discard(*victim);
  return true;
}

bool EarlyChanges::TrySetattr(const Caller& caller, const InodePtr& inode, const SetAttributes& set,
                              proto::MetadataRequest request) {
  if (!MayAnswer()) return false;
  const Order order = TakeOrder();
  *request.mutable_time() = ToProto(environment_.clock.Wall());
  EarlyChange change{inode, 0, nullptr, {}};
  {
    std::lock_guard guard(inode->mutex);
    if (!MayChange(*inode) || !PlainSetattr(*inode, caller, set)) return false;
    ApplySetattr(request.setattr(), request.time(), &inode->attr);
    inode->CountChange();
    if (set.mtime || set.mtime_now) inode->pending.mtime.reset();
    change.number = inode->attr.change();
  }
  Push(caller, std::move(request), std::move(change));
  return true;
}

}  // namespace nacre::client
