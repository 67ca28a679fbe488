#include <sys/stat.h>

#include <cerrno>

#include "rpc/convert.h"
#include "server/metadata/move_out.h"
#include "server/metadata/ops/open_common.h"
#include "server/metadata/ops/ops.h"
#include "server/metadata/privileges.h"
#include "server/metadata/truncation.h"

namespace nacre::mds {
namespace {

Status CheckTime(const proto::Time& time) {
  if (time.nanos() < 1'000'000'000) return OkStatus();
  return ErrnoError(EINVAL, absl::StrFormat("a time with %d nanoseconds", time.nanos()));
}

Status CheckRequest(const proto::Setattr& request) {
  RETURN_IF_ERROR(CheckTime(request.atime()));
  RETURN_IF_ERROR(CheckTime(request.mtime()));
  if (!request.set_size() || request.size() <= kMaxFileSize) return OkStatus();
  return ErrnoError(
      EFBIG, absl::StrFormat("a size of %d bytes: at most %d are possible", request.size(), kMaxFileSize));
}

Status CheckTimes(const Op& op, const Inode& inode, const proto::Setattr& request) {
  bool explicit_times =
      (request.set_atime() && !request.atime_now()) || (request.set_mtime() && !request.mtime_now());
  if (explicit_times) return CheckOwner(op.caller, inode);
  if (!request.set_atime() && !request.set_mtime()) return OkStatus();
  return CheckOwner(op.caller, inode).ok() ? OkStatus() : CheckAccess(op.caller, inode, kMayWrite);
}

Status CheckNewOwner(const Op& op, const Inode& inode, const proto::Setattr& request) {
  if (op.caller.IsRoot()) return OkStatus();
  bool keeps_uid = !request.set_uid() || request.uid() == inode.uid;
  bool may_gid = !request.set_gid() || request.gid() == inode.gid || op.caller.InGroup(request.gid());
  bool changes = request.set_uid() || request.set_gid();
  if (!changes || (op.caller.uid == inode.uid && keeps_uid && may_gid)) return OkStatus();
  return ErrnoError(EPERM,
                    absl::StrFormat("user %d may not give %s (owner %d, group %d) to another owner or group",
                                    op.caller.uid, inode.fid.ToString(), inode.uid, inode.gid));
}

Status CheckSize(const Op& op, const Inode& inode, const proto::Setattr& request) {
  if (!request.set_size()) return OkStatus();
  if (S_ISDIR(inode.mode)) return ErrnoError(EISDIR, absl::StrCat(inode.fid.ToString(), " is a directory"));
  if (!S_ISREG(inode.mode)) {
    return ErrnoError(EINVAL,
                      absl::StrFormat("%s is no regular file: mode %o", inode.fid.ToString(), inode.mode));
  }
  return request.open_handle() ? OkStatus() : CheckAccess(op.caller, inode, kMayWrite);
}

// Before others than the owner write or truncate, the kernel asks in their name for setuid and setgid to go.
bool OnlyDropsSetuid(const Inode& inode, const proto::Setattr& request) {
  const uint32_t before = inode.mode & 07777, after = request.mode() & 07777;
  return before != after && (after & ~before) == 0 && (before & ~after & ~(S_ISUID | S_ISGID)) == 0;
}

Status CheckMode(const Op& op, const Inode& inode, const proto::Setattr& request) {
  if (!request.set_mode() || CheckOwner(op.caller, inode).ok()) return OkStatus();
  if (!OnlyDropsSetuid(inode, request)) return CheckOwner(op.caller, inode);
  return request.open_handle() ? OkStatus() : CheckAccess(op.caller, inode, kMayWrite);
}

Status CheckPermission(const Op& op, const Inode& inode, const proto::Setattr& request) {
  RETURN_IF_ERROR(CheckMode(op, inode, request));
  RETURN_IF_ERROR(CheckNewOwner(op, inode, request));
  RETURN_IF_ERROR(CheckTimes(op, inode, request));
  return CheckSize(op, inode, request);
}

void ApplyMode(const Op& op, const proto::Setattr& request, Inode* inode) {
  bool chown = request.set_uid() || request.set_gid();
  bool strip = request.kill_suid() || (request.set_size() && !op.caller.IsRoot()) || chown;
  if (strip && !S_ISDIR(inode->mode)) inode->mode = ModeWithoutSetuid(inode->mode);
  if (!request.set_mode()) return;
  inode->mode = (inode->mode & S_IFMT) | (request.mode() & 07777);
  if (!op.caller.IsRoot() && !op.caller.InGroup(inode->gid)) inode->mode &= ~static_cast<uint32_t>(S_ISGID);
}

Status ApplyAttributes(const Op& op, const proto::Setattr& request, Transaction* transaction, Inode* inode) {
  transaction->Dirty(inode);
  TouchChanged(inode, op.now);
  if (request.set_uid()) inode->uid = request.uid();
  if (request.set_gid()) inode->gid = request.gid();
  ApplyMode(op, request, inode);
  if (request.set_size()) inode->mtime = op.now;
  if (request.set_atime()) inode->atime = request.atime_now() ? op.now : FromProto(request.atime());
  if (request.set_mtime()) inode->mtime = request.mtime_now() ? op.now : FromProto(request.mtime());
  const bool rights_go = request.set_size() || request.set_uid() || request.set_gid();
  if (!rights_go || !S_ISREG(inode->mode)) return OkStatus();
  return TakeCapability(*op.mds->tables, transaction, inode);
}

// Inline data that stays inline.
Status ResizeBody(const Op& op, Transaction* transaction, Inode* inode, uint64_t size) {
  if (size == inode->size) return OkStatus();
  auto shared = std::make_shared<const Inode>(*inode);
  proto::Layout unused;
  std::string body;
  RETURN_IF_ERROR(FillLayout(*op.mds, shared, &unused, &body));
  body.resize(size, '\0');
  inode->size = size;
  inode->blocks = (size + 511) / 512;
  transaction->batch().Put(FidKey(Table::kBody, inode->fid), std::move(body));
  return OkStatus();
}

Task<Reply> CommitAttributes(const Op& op, const proto::Setattr& request, Transaction* transaction,
                             const Inode* inode) {
  proto::MetadataReply reply;
  proto::AttrReply* out = reply.mutable_attr();
  *out->mutable_attr() = op.AttrOf(*inode);
  if (request.set_size()) *out->mutable_layout() = ToProto(inode->layout);
  CO_RETURN_IF_ERROR(co_await op.Commit(transaction, reply));
  co_return reply;
}

Reply LeftToClient(const Inode& inode) {
  proto::MetadataReply reply;
  *reply.mutable_attr()->mutable_attr() = ToProto(inode);
  reply.mutable_attr()->set_held_back(true);
  return reply;
}

// Everything but a new size that is not zero: one commit, and no OST is asked.
Task<Reply> SetAtOnce(const Op& op, const proto::Setattr& request) {
  const Fid fid = FromProto(request.fid());
  Transaction transaction(*op.mds->tables);
  CO_ASSIGN_OR_RETURN(LockedFile file, co_await LockFile(*op.mds, fid, request.set_size(), &transaction));
  Inode* const inode = file.inode;
  CO_RETURN_IF_ERROR(CheckPermission(op, *inode, request));
  if (request.set_size() && request.may_hold_back() && LeavesTruncationToClient(op, *inode))
    co_return LeftToClient(*inode);
  CO_RETURN_IF_ERROR(ApplyAttributes(op, request, &transaction, inode));
  if (request.set_size() && (inode->size > 0 || inode->blocks > 0))
    CO_RETURN_IF_ERROR(TruncateToZero(op, &transaction, inode, file.object_sequence));
  co_return co_await CommitAttributes(op, request, &transaction, inode);
}

// A new size that is not zero. The work at the OSTs comes first (move_out.h), or between two commits, of
// which the first has the other attributes (truncation.h).
Task<Reply> Resize(const Op& op, const proto::Setattr& request) {
  const Session::Wait for_osts(op.session);
  const Fid fid = FromProto(request.fid());
  std::vector<Fid> fids(1, fid);
  FidLocks::Guard data = co_await op.mds->data_locks.Lock(std::move(fids));
  CO_RETURN_IF_ERROR(co_await SettleTailFor(op.mds, op.session, fid));  // what is cut off must not come back
  while (true) {
    FidLocks::Guard guard = co_await LockOne(*op.mds, fid);
    Transaction transaction(*op.mds->tables);
    CO_ASSIGN_OR_RETURN(Inode * inode, transaction.Load(fid));
    CO_RETURN_IF_ERROR(CheckPermission(op, *inode, request));
    if (inode->inline_data && request.size() > op.mds->options.inline_limit) {
      guard.Release();
      CO_RETURN_IF_ERROR(co_await MoveOutLocked(op, fid));
      continue;
    }
    CO_RETURN_IF_ERROR(ApplyAttributes(op, request, &transaction, inode));
    if (NeedsCut(*inode, request.size())) {
      auto truncation = std::make_shared<Truncation>(op, *inode, request.size(), std::move(data));
      truncation->AddIntent(&transaction.batch());
      CO_RETURN_IF_ERROR(co_await op.CommitIntent(&transaction));
      guard.Release();
      co_return co_await truncation->Complete();
    }
    if (inode->inline_data)
      CO_RETURN_IF_ERROR(ResizeBody(op, &transaction, inode, request.size()));
    else
      inode->size = request.size();
    co_return co_await CommitAttributes(op, request, &transaction, inode);
  }
}

}  // namespace

Task<Reply> Setattr(const Op& op, const proto::Setattr& request) {
  CO_RETURN_IF_ERROR(CheckRequest(request));
  if (request.set_size() && request.size() > 0) co_return co_await Resize(op, request);
  co_return co_await SetAtOnce(op, request);
}

}  // namespace nacre::mds
