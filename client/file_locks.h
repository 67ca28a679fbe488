// flock and fcntl locks: decided by the MDS, remembered here for Reclaim (Inode::locks). Thread-safe.
#pragma once

#include <absl/container/flat_hash_set.h>

#include <cstdint>
#include <functional>
#include <mutex>

#include "client/background.h"
#include "client/entrance.h"
#include "client/session.h"
#include "common/clock.h"

namespace nacre::client {

class FileLocks {
 public:
  // All of them must outlive it.
  FileLocks(Clock& clock, const Entrance& entrance, Background& background, AskMds ask);

  // Returns the lock that is in the way of this one, or one of type F_UNLCK.
  Task<StatusOr<proto::LockRange>> Get(HandlePtr handle, proto::LockRange lock);
  // EAGAIN without `wait`. A wait may last for ever.
  Task<Status> Set(HandlePtr handle, proto::LockRange lock, bool wait, uint64_t wait_id);
  // Ends a wait of that id, if there is one.
  void Cancel(HandlePtr handle, uint64_t wait_id);

 private:
  Task<Status> SetAtMds(HandlePtr handle, proto::LockRange lock, bool wait, uint64_t wait_id);
  Task<void> CancelWait(HandlePtr handle, uint64_t wait_id);

  Clock& clock_;
  const Entrance& entrance_;
  Background& background_;
  const AskMds ask_;
  std::mutex mutex_;
  absl::flat_hash_set<uint64_t> waits_;  // Set with `wait` that have not ended
};

}  // namespace nacre::client
