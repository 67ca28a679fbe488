// SetLock and GetLock. During recovery they wait: a lock that somebody has not reclaimed yet must not be
// given away.
#include <fcntl.h>

#include "rpc/convert.h"
#include "server/metadata/ops/ops.h"

namespace nacre::mds {

Task<Reply> SetLock(const Op& op, const proto::SetLock& request) {
  LockTable& table = op.mds->file_locks;
  if (request.cancel()) {
    table.Cancel(op.session->id, request.wait_id());
    co_return proto::MetadataReply{};
  }
  if (request.lock().type() != F_UNLCK) {
    co_await op.mds->sessions.recovery().Wait();
    CO_RETURN_IF_ERROR(op.mds->tables->GetInode(FromProto(request.lock().fid())).status());
  }
  LockTable::Outcome outcome = table.Set(op.session->id, request.lock(), request.wait(), request.wait_id());
  if (outcome.pending.has_value()) outcome.status = co_await outcome.pending->Wait();
  // The session may have ended while this was on its way: what it got must not stay.
  if (op.session->ended()) table.DropSession(op.session->id);
  CO_RETURN_IF_ERROR(outcome.status);
  co_return proto::MetadataReply{};
}

Task<Reply> GetLock(const Op& op, const proto::GetLock& request) {
  co_await op.mds->sessions.recovery().Wait();
  proto::MetadataReply reply;
  CO_ASSIGN_OR_RETURN(*reply.mutable_lock()->mutable_conflict(),
                      op.mds->file_locks.Get(op.session->id, request.lock()));
  co_return reply;
}

}  // namespace nacre::mds
