#include "client/file_locks.h"

#include <algorithm>
#include <utility>

#include "client/caller.h"
#include "client/lock_list.h"
#include "rpc/convert.h"

namespace nacre::client {

FileLocks::FileLocks(Clock& clock, const Entrance& entrance, Background& background, AskMds ask)
    : clock_(clock), entrance_(entrance), background_(background), ask_(std::move(ask)) {}

Task<StatusOr<proto::LockRange>> FileLocks::Get(HandlePtr handle, proto::LockRange lock) {
  CO_RETURN_IF_ERROR(entrance_.Check(*handle));
  *lock.mutable_fid() = ToProto(handle->inode->fid);
  proto::MetadataRequest request;
  *request.mutable_get_lock()->mutable_lock() = std::move(lock);
  SetCaller(handle->caller, &request);
  CO_ASSIGN_OR_RETURN(proto::MetadataReply reply, co_await ask_(handle->epoch, std::move(request)));
  co_return reply.lock().conflict();
}

Task<Status> FileLocks::Set(HandlePtr handle, proto::LockRange lock, bool wait, uint64_t wait_id) {
  if (!wait) co_return co_await SetAtMds(std::move(handle), std::move(lock), false, 0);
  {
    std::lock_guard guard(mutex_);
    waits_.insert(wait_id);
  }
  Status status = co_await SetAtMds(std::move(handle), std::move(lock), true, wait_id);
  std::lock_guard guard(mutex_);
  waits_.erase(wait_id);
  co_return status;
}

Task<Status> FileLocks::SetAtMds(HandlePtr handle, proto::LockRange lock, bool wait, uint64_t wait_id) {
  CO_RETURN_IF_ERROR(entrance_.Check(*handle));
  *lock.mutable_fid() = ToProto(handle->inode->fid);
  proto::MetadataRequest request;
  *request.mutable_set_lock()->mutable_lock() = lock;
  request.mutable_set_lock()->set_wait(wait);
  request.mutable_set_lock()->set_wait_id(wait_id);
  SetCaller(handle->caller, &request);
  CO_ASSIGN_OR_RETURN(proto::MetadataReply reply, co_await ask_(handle->epoch, std::move(request)));
  std::lock_guard guard(handle->inode->mutex);
  CO_RETURN_IF_ERROR(entrance_.Check(*handle));  // else it has gone with the session
  ApplyLock(&handle->inode->locks, lock);
  co_return OkStatus();
}

void FileLocks::Cancel(HandlePtr handle, uint64_t wait_id) {
  background_.Start(CancelWait(std::move(handle), wait_id));
}

// Again and again until the wait has ended: the MDS forgets a cancellation that overtakes its request, or
// that comes while it still waits for the clients of before.
Task<void> FileLocks::CancelWait(HandlePtr handle, uint64_t wait_id) {
  Duration pause = 20ms;
  for (;;) {
    {
      std::lock_guard guard(mutex_);
      if (!waits_.contains(wait_id)) co_return;
    }
    proto::MetadataRequest request;
    *request.mutable_set_lock()->mutable_lock()->mutable_fid() = ToProto(handle->inode->fid);
    request.mutable_set_lock()->set_wait_id(wait_id);
    request.mutable_set_lock()->set_cancel(true);
    (void)co_await ask_(handle->epoch, std::move(request));
    co_await clock_.Sleep(pause);
    pause = std::min<Duration>(2 * pause, 1s);
  }
}

}  // namespace nacre::client
