#include <sys/stat.h>

#include <cerrno>

#include "rpc/convert.h"
#include "server/metadata/ops/ops.h"
#include "server/metadata/tails.h"
#include "server/metadata/truncation.h"

namespace nacre::mds {
namespace {

Status CheckRequest(const proto::Append& request) {
  const size_t data = request.data().size();
  if (data > kMostOfAppend) {
    return ErrnoError(EFBIG,
                      absl::StrFormat("an append of %d bytes: at most %d are stored", data, kMostOfAppend));
  }
  if (data == 0 || data == request.length()) return OkStatus();
  return ErrnoError(EINVAL, absl::StrFormat("an append of %d bytes brings %d along", request.length(), data));
}

Status CheckTarget(const Inode& inode, uint64_t length) {
  if (!S_ISREG(inode.mode)) {
    return ErrnoError(EINVAL,
                      absl::StrFormat("%s is no regular file: mode %o", inode.fid.ToString(), inode.mode));
  }
  if (inode.inline_data) {
    return ErrnoError(ESTALE,
                      absl::StrFormat("the data of %s lies in the MDT: write it inline, or move it out first",
                                      inode.fid.ToString()));
  }
  if (length <= kMaxFileSize && inode.size <= kMaxFileSize - length) return OkStatus();
  return ErrnoError(EFBIG, absl::StrFormat("%d bytes behind the %d of %s are too many", length, inode.size,
                                           inode.fid.ToString()));
}

struct AppendPlace {
  FidLocks::Guard guard;
  bool stores = false;  // the bytes come into the MDT
};

// Whether they do, now. True: the tail, which is there, has to be written first.
StatusOr<bool> Examine(const Op& op, const Fid& fid, const proto::Append& request, bool* stores) {
  ASSIGN_OR_RETURN(InodePtr inode, op.mds->tables->GetInode(fid));
  RETURN_IF_ERROR(CheckTarget(*inode, request.length()));
  const uint64_t bytes = request.data().size();
  *stores = bytes > 0 && MayStoreTail(*op.mds, *inode, bytes);
  return *stores ? op.mds->tails.IsFull(fid, bytes) : op.mds->tails.Has(fid);
}

// Takes the file's lock, with a tail to which the bytes may be added, or without one if they are not stored.
Task<StatusOr<AppendPlace>> LockPlace(const Op& op, Fid fid, const proto::Append& request) {
  AppendPlace place;
  place.guard = co_await LockQuiet(*op.mds, fid);
  CO_ASSIGN_OR_RETURN(const bool settle, Examine(op, fid, request, &place.stores));
  if (!settle) co_return place;
  place.guard.Release();
  CO_ASSIGN_OR_RETURN(place.guard, co_await LockSettled(op.mds, op.session, fid));
  CO_RETURN_IF_ERROR(Examine(op, fid, request, &place.stores).status());
  co_return place;
}

}  // namespace

Task<Reply> Append(const Op& op, const proto::Append& request) {
  CO_RETURN_IF_ERROR(CheckRequest(request));
  const Fid fid = FromProto(request.fid());
  CO_ASSIGN_OR_RETURN(AppendPlace place, co_await LockPlace(op, fid, request));
  Transaction transaction(*op.mds->tables);
  CO_ASSIGN_OR_RETURN(Inode * inode, transaction.Load(fid));
  proto::MetadataReply reply;
  proto::AppendReply* out = reply.mutable_append();
  out->set_offset(inode->size);
  out->set_stored(place.stores);
  transaction.Dirty(inode);
  if (place.stores)
    AddTail(*op.mds, &transaction, inode, request.data());
  else
    inode->size += request.length();
  TouchModified(inode, op.now);
  if (place.stores && request.kill_suid()) inode->mode = ModeWithoutSetuid(inode->mode);
  *out->mutable_attr() = ToProto(*inode);
  CO_RETURN_IF_ERROR(co_await op.Commit(&transaction, reply));
  co_return reply;
}

}  // namespace nacre::mds
