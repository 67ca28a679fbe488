// How many of the application's streams stand still until we let them go on (stream_order.h), and with it
// what our own work may be made of meanwhile.
//
// A GPU takes work from hardware queues, fewer than there are streams (CUDA_DEVICE_MAX_CONNECTIONS: 8, or 1
// under Megatron-LM), and what is enqueued in one behind a stream that waits, waits too. If that is what ends
// the wait, neither ever ends. Measured on an H100 with driver 580: kernels, memsets and short copies to the
// GPU (less than 32 KiB in one piece, also in a batch) stand behind such a stream, whatever the priority of
// their own. Its copy engines' work stands behind nobody: longer copies to the GPU, copies in two rows or
// more, and all copies from it (docs/decisions/0028-waiting-streams.md). So while a stream waits, only these
// are enqueued (issuer.h).
//
// Thread-safe.
#pragma once

#include <cstddef>
#include <mutex>

namespace nacre::gpu {

class StreamWaits {
 public:
  // Before a wait is enqueued; and when it has been ended.
  void Begin() {
    std::lock_guard lock(mutex_);
    ++waiting_;
  }
  void End() {
    std::lock_guard lock(mutex_);
    --waiting_;
  }

  // If no stream waits: none begins to while the lock is held, and what is enqueued under it stands before
  // the next that does. If one waits, the lock is not held.
  std::unique_lock<std::mutex> HoldOff() {
    std::unique_lock lock(mutex_);
    if (waiting_ > 0) lock.unlock();
    return lock;
  }

 private:
  std::mutex mutex_;
  size_t waiting_ = 0;
};

}  // namespace nacre::gpu
