// Renames that are answered before the MDS has done them.
#include <linux/fs.h>
#include <sys/stat.h>

#include "client/attribute_rules.h"
#include "client/data_cache.h"
#include "client/early_changes.h"
#include "client/plain_change.h"
#include "rpc/convert.h"

namespace nacre::client {

std::optional<EarlyRename> EarlyChanges::FindRename(const InodePtr& from, const InodePtr& to,
                                                    const proto::Rename& rename) {
  const NameKnown source = FindName(*from, rename.name());
  NameKnown target;
  {
    std::lock_guard lock(to->mutex);
    target = FindAmongAll(*to, rename.new_name());
  }
  EarlyRename found{from, to, rename.name(), rename.new_name(), nullptr, nullptr};
  if (source.fid) found.source = inodes_.Find(source.fid);
  if (target.fid) found.target = inodes_.Find(target.fid);
  const bool free = target.answer == NameKnown::Answer::kAbsent;
  if (found.source == nullptr || found.source == found.target) return std::nullopt;
  if (!free && (found.target == nullptr || rename.flags() != 0)) return std::nullopt;
  return found;
}

// With the order and both names held. A directory neither goes elsewhere nor over anything.
bool EarlyChanges::MayRename(const Caller& caller, const EarlyRename& rename) {
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
    const NameKnown known = FindAmongAll(*rename.to, rename.new_name);
    if (known.fid != (rename.target != nullptr ? rename.target->fid : Fid{})) return false;
    if (known.answer == NameKnown::Answer::kUnknown) return false;
    to_sticky = IsSticky(*rename.to, caller);
  }
  if (rename.target != nullptr) {
    std::lock_guard lock(rename.target->mutex);
    if (!MayChange(*rename.target) || !Removable(*rename.target, caller, to_sticky, false)) return false;
    if (!MayLoseName(*rename.target)) return false;
  }
  std::lock_guard lock(rename.source->mutex);
  const proto::Attr& attr = rename.source->attr;
  if (!MayChange(*rename.source) || attr.nlink() == 0) return false;
  if (rename.from != rename.to && rename.source->PagesNeedCover()) return false;
  if (S_ISDIR(attr.mode()) && (rename.from != rename.to || rename.target != nullptr)) return false;
  return !from_sticky || caller.uid == attr.uid();
}

// A file that goes elsewhere is covered by the lease of the directory where it is then: that makes sure that
// the MDS is told of its handles, and waits for what the kernel was promised under the other one. One that
// has a lease of its own keeps that.
void EarlyChanges::MoveCover(const EarlyRename& rename) {
  ScopePtr from, to;
  {
    std::lock_guard lock(rename.from->mutex);
    from = rename.from->covered;
  }
  {
    std::lock_guard lock(rename.to->mutex);
    to = rename.to->covered;
  }
  Inode& file = *rename.source;
  std::lock_guard lock(file.mutex);
  if (S_ISDIR(file.attr.mode())) return;
  to->PromiseUntil(from->promised());
  if (file.covered->of_file()) return;
  from = file.covered;
  const bool alone = file.alone_under == from, made = file.made_under == from;
  file.LeaveCover();
  file.covered = to;
  if (alone) file.alone_under = to;
  if (made) file.made_under = to;
  file.pages.under.reset();
  if (file.opened_under != nullptr) file.opened_under = to;
  if (file.data_scope != nullptr) {
    (void)to->NoteData(file.fid);  // whoever ends it waits for the order
    file.data_scope = to;
  }
  to->PromiseUntil(from->promised());
}

// Changes what is known, but for the names. Returns whether nobody needs the inode any more that was
// replaced.
bool EarlyChanges::ApplyRename(const EarlyRename& rename, const proto::Time& now, bool* keep_open) {
  if (rename.from != rename.to) MoveCover(rename);
  {
    std::lock_guard lock(rename.source->mutex);
    *rename.source->attr.mutable_ctime() = now;
    if (rename.source->attr.has_parent()) *rename.source->attr.mutable_parent() = ToProto(rename.to->fid);
    rename.source->CountChange();
  }
  bool unused = false;
  if (rename.target != nullptr) {
    std::lock_guard lock(rename.target->mutex);
    unused = rename.target->DropLink(now, keep_open);
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

bool EarlyChanges::TryRename(const Caller& caller, const InodePtr& from, const InodePtr& to,
                             proto::MetadataRequest request) {
  const uint32_t flags = request.rename().flags();
  if (!MayAnswer() || (flags & ~static_cast<uint32_t>(RENAME_NOREPLACE)) != 0) return false;
  if (!PlainName(request.rename().name()) || !PlainName(request.rename().new_name())) return false;
  std::optional<EarlyRename> rename = FindRename(from, to, request.rename());
  if (!rename) return false;
  Frozen frozen;
  if (const InodePtr& target = rename->target; target != nullptr) {
    frozen = Frozen(target->data_cache, &target->data);
    if (target->data_cache->InFlight(target->data)) return false;
  }

  Order order = TakeOrder();
  std::optional<NameLock> from_lock = NameLock::TryTake(from, rename->name), to_lock;
  if (from_lock) to_lock = NameLock::TryTake(to, rename->new_name);
  if (!to_lock || !MayRename(caller, *rename)) return false;
  *request.mutable_time() = ToProto(environment_.clock.Wall());
  bool keep_open = false;
  const bool unused = ApplyRename(*rename, request.time(), &keep_open);
  request.mutable_rename()->set_keep_open(keep_open);
  if (rename->target != nullptr) ForgetRemoved(*to, *rename->target);
  EarlyChange change{rename->source, 0, from, rename->name, to, rename->new_name, rename->target};
  {
    std::lock_guard lock(rename->source->mutex);
    change.number = rename->source->attr.change();
  }
  Push(caller, std::move(request), std::move(change));
  from_lock->Set(Fid{});
  to_lock->Set(rename->source->fid);
  from_lock.reset();
  to_lock.reset();
  order.unlock();
  if (unused) hooks_.discard(*rename->target);
  return true;
}

}  // namespace nacre::client
