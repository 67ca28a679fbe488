// Setattr, truncation among it.
#include <sys/stat.h>

#include <cerrno>

#include "client/core.h"
#include "client/permission.h"
#include "client/settling.h"

namespace nacre::client {
namespace {

proto::MetadataRequest Encode(Fid fid, const SetAttributes& set) {
  proto::MetadataRequest request;
  proto::Setattr* out = request.mutable_setattr();
  *out->mutable_fid() = ToProto(fid);
  out->set_set_mode(set.mode.has_value());
  out->set_mode(set.mode.value_or(0));
  out->set_set_uid(set.uid.has_value());
  out->set_uid(set.uid.value_or(0));
  out->set_set_gid(set.gid.has_value());
  out->set_gid(set.gid.value_or(0));
  out->set_set_size(set.size.has_value());
  out->set_size(set.size.value_or(0));
  out->set_set_atime(set.atime.has_value() || set.atime_now);
  out->set_atime_now(set.atime_now);
  if (set.atime) *out->mutable_atime() = ToProto(*set.atime);
  out->set_set_mtime(set.mtime.has_value() || set.mtime_now);
  out->set_mtime_now(set.mtime_now);
  if (set.mtime) *out->mutable_mtime() = ToProto(*set.mtime);
  out->set_kill_suid(set.kill_suid);
  return request;
}

// Whether it truncates to nothing, and sets nothing else but what follows from that.
bool OnlyEmpties(const SetAttributes& set) {
  const bool others = set.mode || set.uid || set.gid || set.atime || set.atime_now || set.mtime;
  return set.size == uint64_t{0} && !others;
}

bool OnlyEmpties(const proto::Setattr& set) {
  const bool others = set.set_mode() || set.set_uid() || set.set_gid() || set.set_atime();
  return set.set_size() && set.size() == 0 && !others && (!set.set_mtime() || set.mtime_now());
}

// To be called with inode.mutex held. The MDS alone judges what becomes of setuid bits and capabilities.
bool MayCutBehind(const Inode& inode) {
  const proto::Attr& attr = inode.attr;
  return inode.attr_known && S_ISREG(attr.mode()) && (attr.mode() & (S_ISUID | S_ISGID)) == 0 &&
         !attr.has_xattrs() && !inode.gone && attr.nlink() > 0 && !inode.pending.kill_suid;
}

}  // namespace

Task<StatusOr<Known>> Core::Setattr(const Caller& caller, Fid fid, SetAttributes set, HandlePtr handle) {
  NACRE_ENTER(pass);
  if (handle != nullptr) CO_RETURN_IF_ERROR(entrance_.Check(*handle));
  InodePtr inode = handle != nullptr ? handle->inode : inodes_->Get(fid);
  proto::MetadataRequest request = Encode(inode->fid, set);
  request.mutable_setattr()->set_open_handle(handle != nullptr && handle->writable());
  if (set.size) {
    auto cut = co_await TryTruncateBehind(caller, inode, set, handle != nullptr && handle->writable());
    CO_RETURN_IF_ERROR(cut.status());
    if (!*cut) CO_RETURN_IF_ERROR(co_await Truncate(caller, inode, std::move(request)));
    co_return knowledge_->Answer(*inode);
  }

  // Sends what is pending and would undo this later: times, and a setuid bit to be taken.
  AsyncMutex::Guard meta = co_await inode->meta.Lock();
  bool undoes;
  {
    std::lock_guard lock(inode->mutex);
    undoes = inode->pending.kill_suid || (inode->IsShared() && inode->pending.any());
  }
  if (undoes) {
    meta.Release();
    CO_RETURN_IF_ERROR(co_await write_behind_->SendAll(inode));
    meta = co_await inode->meta.Lock();
  }
  if (early_->MayAnswer()) {
    CO_RETURN_IF_ERROR(co_await queue_->WaitForRoom());
    if (early_->TrySetattr(caller, inode, set, request)) co_return knowledge_->Answer(*inode);
  }
  Settling settling(*early_, {inode});
  CO_ASSIGN_OR_RETURN(proto::MetadataReply reply, co_await mds_->Ask(caller, std::move(request)));
  {
    std::lock_guard lock(inode->mutex);
    inode->Apply(reply.attr().attr());
    if (set.mtime || set.mtime_now) inode->pending.mtime.reset();
  }
  co_return knowledge_->Answer(*inode);
}

// --- truncation, held back ---

bool Core::MayHoldCutsBack() const {
  return options_.caching && early_->MayAnswer() && room_.inline_limit() > 0;
}

// Truncates the file to nothing, here: the MDS hears of it with the first of the new bytes, at an fsync, or
// when nobody has the file open for writing any more. Until then it has the old bytes, so that a program
// which rewrites a file has the old or the new ones, whenever this client is killed. False: the MDS has to be
// asked.
Task<StatusOr<bool>> Core::TryCutBehind(InodePtr inode) {
  if (!MayHoldCutsBack()) co_return false;
  {
    std::lock_guard lock(inode->mutex);
    if (!MayCutBehind(*inode)) co_return false;
  }
  const bool taken = co_await held_data_->Take(inode);
  if (!taken) co_return false;
  RangeLock::Guard range = co_await moving_out_->LockWhole(inode, MayGiveUp::kYes);
  if (!range) co_return GivenUp();
  Status sent = co_await write_behind_->SendAll(inode);  // the bytes of before are the old ones
  if (!sent.ok()) co_return false;  // what is lost of them need not keep anybody from new ones
  const bool held = co_await write_behind_->Hold(inode, kRecordRoom);
  if (!held) co_return false;
  AsyncMutex::Guard meta = co_await inode->meta.Lock();
  {
    std::lock_guard lock(inode->mutex);
    if (inode->data_scope == nullptr || !MayCutBehind(*inode) || inode->settling > 0) co_return false;
  }
  co_await cache_->WaitFlights(inode->data, 0, UINT64_MAX);
  data_->Drop(*inode, 0, UINT64_MAX);
  {
    std::lock_guard lock(inode->mutex);
    inode->pending = {};
    inode->pending.cut = true;  // of an empty file too: its times change
    inode->pending.mtime = environment_.clock.Wall();
    inode->inline_bytes = std::make_shared<std::string>();
    inode->inline_dirty_begin = inode->inline_dirty_end = 0;
  }
  early_->CountWrite();
  dirty_.List(inode);
  co_return true;
}

Task<StatusOr<bool>> Core::TryTruncateBehind(const Caller& caller, InodePtr inode, const SetAttributes& set,
                                             bool open_for_writing) {
  if (!OnlyEmpties(set)) co_return false;
  {
    std::lock_guard lock(inode->mutex);
    if (!knowledge_->Trusts(*inode) || !(open_for_writing || MayAccess(inode->attr, caller, kMayWrite)))
      co_return false;
  }
  co_return co_await TryCutBehind(inode);
}

// --- truncation, at the MDS ---

// The MDS may leave a truncation to nothing to this client (TryCutBehind).
Task<Status> Core::Truncate(const Caller& caller, InodePtr inode, proto::MetadataRequest request) {
  proto::Setattr* set = request.mutable_setattr();
  set->set_may_hold_back(MayHoldCutsBack() && OnlyEmpties(*set));
  auto left = co_await TruncateAtMds(caller, inode, request);
  if (!left.ok() || !*left) co_return left.status();
  CO_ASSIGN_OR_RETURN(const bool cut, co_await TryCutBehind(inode));
  if (cut) co_return OkStatus();
  set->set_may_hold_back(false);
  left = co_await TruncateAtMds(caller, inode, std::move(request));
  co_return left.status();
}

// Whether the MDS leaves the truncation to this client.
Task<StatusOr<bool>> Core::TruncateAtMds(const Caller& caller, InodePtr inode,
                                         proto::MetadataRequest request) {
  const uint64_t size = request.setattr().size();
  RangeLock::Guard range = co_await moving_out_->LockWhole(inode, MayGiveUp::kYes);
  if (!range) co_return GivenUp();
  CO_RETURN_IF_ERROR(co_await telling_->TellCut(inode));
  bool inline_data = false, known = false;
  {
    std::lock_guard lock(inode->mutex);
    known = inode->attr_known;
    inline_data = known && inode->attr.inline_data();
  }
  if (HoldsData(*inode) && inline_data && size > room_.inline_limit()) {
    CO_RETURN_IF_ERROR(co_await mds_->LoadFile(inode));
    CO_RETURN_IF_ERROR(co_await moving_out_->MoveOut(inode));
    inline_data = false;
  }
  Frozen frozen;
  if (HoldsData(*inode) && !inline_data) {
    frozen = Frozen(cache_, &inode->data);  // what is cut need not be sent
    co_await cache_->WaitFlights(inode->data, 0, UINT64_MAX);
  }
  if (!inline_data) CO_RETURN_IF_ERROR(co_await telling_->SendPending(inode));
  AsyncMutex::Guard meta = co_await inode->meta.Lock();
  Settling settling(*early_, {inode});
  CO_ASSIGN_OR_RETURN(proto::MetadataReply reply, co_await mds_->Ask(caller, std::move(request)));
  const proto::AttrReply& answer = reply.attr();
  if (!answer.held_back()) data_->Drop(*inode, size, UINT64_MAX);
  {
    std::lock_guard lock(inode->mutex);
    inode->Apply(answer.attr());
    inode->NoteAlone(answer.alone_under());
    if (answer.held_back()) co_return true;
    if (answer.has_layout() && answer.layout().components_size() > 0) inode->ApplyLayout(answer.layout());
    inode->pending.size = inode->pending.sent_size = 0;
    inode->pending.mtime.reset();
    if (size == 0) inode->rewritten = true;
    inode->CutInline(size, inline_data);
    if (inode->Inline() && inode->inline_bytes == nullptr) inode->EndData();
  }
  co_return false;
}

}  // namespace nacre::client
