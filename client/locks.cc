// flock and fcntl locks: decided by the MDS, remembered here for Reclaim.
#include <fcntl.h>

#include <algorithm>
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
  if (!wait) co_return co_await SetLockAtMds(std::move(handle), std::move(lock), false, 0);
  {
    std::lock_guard guard(mutex_);
    lock_waits_.insert(wait_id);
  }
  Status status = co_await SetLockAtMds(std::move(handle), std::move(lock), true, wait_id);
  std::lock_guard guard(mutex_);
  lock_waits_.erase(wait_id);
  co_return status;
}

Task<Status> Core::SetLockAtMds(HandlePtr handle, proto::LockRange lock, bool wait, uint64_t wait_id) {
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
  Background(CancelWait(std::move(handle), wait_id));
}

// Again and again until the wait has ended: the MDS forgets a cancellation that overtakes its request, or
// that comes while it still waits for the clients of before.
Task<void> Core::CancelWait(HandlePtr handle, uint64_t wait_id) {
  Duration pause = 20ms;
  for (;;) {
    {
      std::lock_guard guard(mutex_);
      if (!lock_waits_.contains(wait_id)) co_return;
    }
    proto::MetadataRequest request;
    *request.mutable_set_lock()->mutable_lock()->mutable_fid() = ToProto(handle->inode->fid);
    request.mutable_set_lock()->set_wait_id(wait_id);
    request.mutable_set_lock()->set_cancel(true);
    (void)co_await AskIn(handle->epoch, std::move(request));
    co_await environment_.clock.Sleep(pause);
    pause = std::min<Duration>(2 * pause, 1s);
  }
}

}  // namespace nacre::client
