#include <absl/strings/escaping.h>
#include <sys/stat.h>

#include <cerrno>
#include <optional>

#include "rpc/convert.h"
#include "server/metadata/ops/open_common.h"
#include "server/metadata/ops/ops.h"

namespace nacre::mds {
namespace {

constexpr uint32_t kNoReplace = 1, kExchange = 2;  // as renameat2(2)

// Everything that one rename looks at; the pointers belong to the transaction.
struct Plan {
  Inode* old_directory = nullptr;
  Inode* new_directory = nullptr;
  Entry source_entry;
  Inode* source = nullptr;
  std::optional<Entry> target_entry;
  Inode* target = nullptr;  // null: the new name is free
  bool exchange = false;
};

Status CheckRequest(const proto::Rename& request) {
  RETURN_IF_ERROR(CheckName(request.name()));
  RETURN_IF_ERROR(CheckName(request.new_name()));
  if ((request.flags() & ~(kNoReplace | kExchange)) == 0 && request.flags() != (kNoReplace | kExchange))
    return OkStatus();
  return ErrnoError(
      EINVAL,
      absl::StrFormat("rename flags 0x%x: allowed are RENAME_NOREPLACE and RENAME_EXCHANGE, one of them",
                      request.flags()));
}

Fid PeekEntry(Mds& mds, const Fid& parent, const std::string& name) {
  auto entry = mds.tables->FindEntry(parent, name);
  return entry.ok() ? entry->fid : Fid{};
}

bool MovesDirectory(Mds& mds, const Fid& fid) {
  if (!fid) return false;
  auto inode = mds.tables->GetInode(fid);
  return inode.ok() && S_ISDIR((*inode)->mode);
}

// No inode has it.
constexpr Fid kShapeOfTree{0, 2, 0};

// The directories, what the names mean in them, and, where a directory goes to another parent, the lock that
// keeps the tree's shape: while it is held nobody else makes a directory the ancestor of another one.
std::vector<Fid> LocksFor(Mds& mds, const proto::Rename& request) {
  const Fid parent = FromProto(request.parent());
  const Fid new_parent = FromProto(request.new_parent());
  const Fid source = PeekEntry(mds, parent, request.name());
  const Fid target = PeekEntry(mds, new_parent, request.new_name());
  std::vector<Fid> fids = {parent, new_parent, source, target};
  bool exchanged = (request.flags() & kExchange) != 0 && MovesDirectory(mds, target);
  if (parent != new_parent && (MovesDirectory(mds, source) || exchanged)) fids.push_back(kShapeOfTree);
  return fids;
}

Task<FidLocks::Guard> LockAll(Mds& mds, const proto::Rename& request) {
  while (true) {
    FidLocks::Guard guard = co_await mds.locks.Lock(LocksFor(mds, request));
    bool same = true;
    for (const Fid& fid : LocksFor(mds, request)) same = same && (!fid || guard.Holds(fid));
    if (same) co_return guard;
  }
}

StatusOr<Inode*> LoadDirectory(const Op& op, Transaction* transaction, const Fid& fid) {
  ASSIGN_OR_RETURN(Inode * directory, transaction->Load(fid));
  RETURN_IF_ERROR(CheckDirectory(*directory));
  RETURN_IF_ERROR(CheckAccess(op.caller, *directory, kMayExecute));
  return directory;
}

StatusOr<Plan> Load(const Op& op, const proto::Rename& request, Transaction* transaction) {
  Plan plan;
  plan.exchange = (request.flags() & kExchange) != 0;
  ASSIGN_OR_RETURN(plan.old_directory, LoadDirectory(op, transaction, FromProto(request.parent())));
  ASSIGN_OR_RETURN(plan.new_directory, LoadDirectory(op, transaction, FromProto(request.new_parent())));
  ASSIGN_OR_RETURN(plan.source_entry, transaction->Find(plan.old_directory->fid, request.name()));
  ASSIGN_OR_RETURN(plan.source, transaction->Load(plan.source_entry.fid));
  auto target = transaction->Find(plan.new_directory->fid, request.new_name());
  if (absl::IsNotFound(target.status())) return plan;
  RETURN_IF_ERROR(target.status());
  plan.target_entry = *std::move(target);
  ASSIGN_OR_RETURN(plan.target, transaction->Load(plan.target_entry->fid));
  return plan;
}

Status CheckTargetName(const Plan& plan, const proto::Rename& request) {
  if ((request.flags() & kNoReplace) != 0 && plan.target != nullptr) {
    return ErrnoError(
        EEXIST, absl::StrFormat("directory %s has an entry \"%s\" already",
                                plan.new_directory->fid.ToString(), absl::CHexEscape(request.new_name())));
  }
  if (plan.exchange && plan.target == nullptr) {
    return ErrnoError(
        ENOENT, absl::StrFormat("nothing to exchange with: no entry \"%s\" in directory %s",
                                absl::CHexEscape(request.new_name()), plan.new_directory->fid.ToString()));
  }
  return CheckLinked(*plan.new_directory);
}

// Moving a directory elsewhere changes its "..".
Status CheckParentChange(const Op& op, const Plan& plan, const Inode& moved) {
  if (!S_ISDIR(moved.mode) || plan.old_directory == plan.new_directory) return OkStatus();
  return CheckAccess(op.caller, moved, kMayWrite);
}

Status CheckPermission(const Op& op, const Plan& plan) {
  RETURN_IF_ERROR(CheckRemoval(op.caller, *plan.old_directory, *plan.source));
  RETURN_IF_ERROR(CheckDirectoryChange(op.caller, *plan.new_directory));
  if (plan.target != nullptr) RETURN_IF_ERROR(CheckRemoval(op.caller, *plan.new_directory, *plan.target));
  RETURN_IF_ERROR(CheckParentChange(op, plan, *plan.source));
  return plan.exchange ? CheckParentChange(op, plan, *plan.target) : OkStatus();
}

// EINVAL if `directory` lies in the tree below `moved`, or is it.
Status CheckNotBelow(Mds& mds, const Inode& moved, const Inode& directory) {
  if (!S_ISDIR(moved.mode)) return OkStatus();
  Fid at = directory.fid;
  for (int depth = 0; depth < kMaxDepth; ++depth) {
    if (at == moved.fid) {
      return ErrnoError(EINVAL, absl::StrFormat("directory %s cannot go into %s, which lies below it",
                                                moved.fid.ToString(), directory.fid.ToString()));
    }
    if (at == kRootFid || !at) return OkStatus();
    ASSIGN_OR_RETURN(InodePtr inode, mds.tables->GetInode(at));
    at = inode->parent;
  }
  return ErrnoError(EINVAL,
                    absl::StrFormat("directory %s lies deeper than %d", directory.fid.ToString(), kMaxDepth));
}

Status CheckTypes(const Plan& plan) {
  bool grows =
      S_ISDIR(plan.source->mode) && plan.old_directory != plan.new_directory && plan.target == nullptr;
  if (grows && plan.new_directory->nlink >= kMaxSubdirectories) {
    return ErrnoError(EMLINK,
                      absl::StrCat(plan.new_directory->fid.ToString(), " has too many subdirectories"));
  }
  if (plan.target == nullptr || plan.target == plan.source || plan.exchange) return OkStatus();
  bool from_directory = S_ISDIR(plan.source->mode), to_directory = S_ISDIR(plan.target->mode);
  if (from_directory && !to_directory) {
    return ErrnoError(
        ENOTDIR, absl::StrCat("a directory cannot replace ", plan.target->fid.ToString(), ", which is none"));
  }
  if (!from_directory && to_directory) {
    return ErrnoError(EISDIR,
                      absl::StrCat("only a directory can replace directory ", plan.target->fid.ToString()));
  }
  if (to_directory && plan.target->size > 0) {
    return ErrnoError(ENOTEMPTY, absl::StrFormat("directory %s has %d entries", plan.target->fid.ToString(),
                                                 plan.target->size));
  }
  return OkStatus();
}

// The inode's link (parent, cookie) becomes (new_parent, new_cookie).
void MoveLink(Transaction* transaction, Inode* inode, const Entry& old_entry, const Fid& old_parent,
              const Fid& new_parent, uint64_t new_cookie, WallTime now) {
  transaction->Dirty(inode);
  TouchChanged(inode, now);
  if (inode->parent == old_parent && inode->parent_cookie == old_entry.cookie) {
    inode->parent = new_parent;
    inode->parent_cookie = new_cookie;
    return;
  }
  transaction->batch().Erase(ReverseLinkKey(inode->fid, old_parent, old_entry.cookie));
  transaction->batch().Put(ReverseLinkKey(inode->fid, new_parent, new_cookie), {});
}

void CountEntry(Inode* directory, const Inode& entry, int by) {
  directory->size += static_cast<uint64_t>(by);
  if (S_ISDIR(entry.mode)) directory->nlink += static_cast<uint32_t>(by);
}

Status Apply(const Op& op, const proto::Rename& request, Transaction* transaction, const Plan& plan) {
  const Fid from = plan.old_directory->fid, to = plan.new_directory->fid;
  for (Inode* directory : {plan.old_directory, plan.new_directory}) {
    transaction->Dirty(directory);
    TouchWritten(directory, op.now);
  }
  RETURN_IF_ERROR(transaction->RemoveEntry(from, request.name()));
  CountEntry(plan.old_directory, *plan.source, -1);
  if (plan.target != nullptr) {
    RETURN_IF_ERROR(transaction->RemoveEntry(to, request.new_name()));
    CountEntry(plan.new_directory, *plan.target, -1);
  }
  if (plan.target != nullptr && !plan.exchange) {
    RETURN_IF_ERROR(DropLink(*op.mds, transaction, plan.target, to, plan.target_entry->cookie,
                             request.keep_open(), op.now));
  }
  ASSIGN_OR_RETURN(uint64_t cookie, transaction->AddEntry(to, request.new_name(), plan.source->fid,
                                                          DirType(plan.source->mode)));
  CountEntry(plan.new_directory, *plan.source, 1);
  MoveLink(transaction, plan.source, plan.source_entry, from, to, cookie, op.now);
  if (!plan.exchange) return OkStatus();
  ASSIGN_OR_RETURN(uint64_t back,
                   transaction->AddEntry(from, request.name(), plan.target->fid, DirType(plan.target->mode)));
  CountEntry(plan.old_directory, *plan.target, 1);
  MoveLink(transaction, plan.target, *plan.target_entry, to, from, back, op.now);
  return OkStatus();
}

proto::MetadataReply MakeReply(const Op& op, const Plan& plan) {
  proto::MetadataReply reply;
  proto::Entry* entry = reply.mutable_entry();
  *entry->mutable_attr() = op.AttrOf(*plan.source);
  if (!op.TellsAttributes()) return reply;
  *entry->mutable_parent() = ToProto(*plan.new_directory);
  *entry->mutable_old_parent() = ToProto(*plan.old_directory);
  if (plan.target != nullptr) *entry->mutable_replaced() = ToProto(*plan.target);
  return reply;
}

}  // namespace

Task<Reply> Rename(const Op& op, const proto::Rename& request) {
  CO_RETURN_IF_ERROR(CheckRequest(request));
  Mds& mds = *op.mds;
  FidLocks::Guard guard = co_await LockAll(mds, request);
  Transaction transaction(*mds.tables);
  CO_ASSIGN_OR_RETURN(Plan plan, Load(op, request, &transaction));
  CO_RETURN_IF_ERROR(CheckTargetName(plan, request));
  CO_RETURN_IF_ERROR(CheckNotBelow(mds, *plan.source, *plan.new_directory));
  if (plan.exchange) CO_RETURN_IF_ERROR(CheckNotBelow(mds, *plan.target, *plan.old_directory));
  if (plan.source == plan.target) {  // two names of one inode, or the same name twice: nothing is to be done
    CO_RETURN_IF_ERROR(op.CheckTold(plan.source->fid));
  } else {
    CO_RETURN_IF_ERROR(CheckPermission(op, plan));
    CO_RETURN_IF_ERROR(CheckTypes(plan));
    CO_RETURN_IF_ERROR(Apply(op, request, &transaction, plan));
  }
  proto::MetadataReply reply = MakeReply(op, plan);
  CO_RETURN_IF_ERROR(co_await op.Commit(&transaction, reply));
  bool orphan = plan.target != nullptr && plan.target != plan.source && plan.target->nlink == 0;
  if (request.keep_open() && orphan) NoteKept(op, plan.target->fid);
  co_return reply;
}

}  // namespace nacre::mds
