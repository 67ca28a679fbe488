// flock and fcntl locks: decided by the MDS, remembered here for Reclaim.
#include <fcntl.h>

#include <cerrno>

#include "client/core.h"
#include "client/lock_list.h"

namespace nacre::client {

Task<StatusOr<proto::LockRange>> Core::GetLock(HandlePtr handle, proto::LockRange lock) {
  CO_RETURN_IF_ERROR(CheckHandle(*handle));
  *lock.mutable_fid() = ToProto(handle->inode->fid);
  proto::MetadataRequest request;
  *request.mutable_get_lock()->mutable_lock() = std::move(lock);
  SetCaller(handle->caller, &request);
  CO_ASSIGN_OR_RETURN(proto::MetadataReply reply, co_await AskIn(handle->epoch, std::move(request)));
  co_return reply.lock().conflict();
}

// Does not pass the gate: a wait may last for ever.
Task<Status> Core::SetLock(HandlePtr handle, proto::LockRange lock, bool wait, uint64_t wait_id) {
  CO_RETURN_IF_ERROR(CheckHandle(*handle));
  *lock.mutable_fid() = ToProto(handle->inode->fid);
  proto::MetadataRequest request;
  *request.mutable_set_lock()->mutable_lock() = lock;
  request.mutable_set_lock()->set_wait(wait);
  request.mutable_set_lock()->set_wait_id(wait_id);
  SetCaller(handle->caller, &request);
  CO_ASSIGN_OR_RETURN(proto::MetadataReply reply, co_await AskIn(handle->epoch, std::move(request)));
  std::lock_guard guard(handle->inode->mutex);
  CO_RETURN_IF_ERROR(CheckHandle(*handle));  // else it has gone with the session
  ApplyLock(&handle->inode->locks, lock);
  co_return OkStatus();
}

void Core::CancelLock(HandlePtr handle, uint64_t wait_id) {
  proto::MetadataRequest request;
  *request.mutable_set_lock()->mutable_lock()->mutable_fid() = ToProto(handle->inode->fid);
  request.mutable_set_lock()->set_wait_id(wait_id);
  request.mutable_set_lock()->set_cancel(true);
  Background([](Core* core, uint64_t epoch, proto::MetadataRequest cancel) -> Task<void> {
    (void)co_await core->AskIn(epoch, std::move(cancel));
  }(this, handle->epoch, std::move(request)));
}

}  // namespace nacre::client
