// The ring of pinned host memory between the network and a GPU. Slots of 1 MiB, allocated as they are needed
// up to a limit; small requests share one. A caller that finds none free waits, first come first served.
// Thread-safe. The buffers keep the ring alive.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "common/task.h"
#include "gpu/context.h"
#include "gpu/copy_engine.h"
#include "gpu/pinned_ranges.h"
#include "transport/memory_device.h"

namespace nacre::gpu {

class Staging : public std::enable_shared_from_this<Staging> {
 public:
  static constexpr size_t kSlotSize = 1 << 20;
  static constexpr size_t kSmallSize = 64 << 10;

  Staging(std::shared_ptr<Context> context, std::shared_ptr<PinnedRanges> pinned, uint64_t most_bytes);
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // As MemoryDevice::Stage. `engine` allocates. ENOMEM if not even one slot can be had.
  Task<StatusOr<StagingBuffer>> Stage(size_t size, CopyEngine* engine);

  // As MemoryDevice::ReserveStaging.
  Task<uint64_t> Reserve(size_t size, CopyEngine* engine);

  uint64_t allocated_bytes() const;

 private:
  struct Slot {
    std::byte* data = nullptr;
    std::vector<std::byte*> free_small;  // while it is cut into small ones
    bool cut = false;
  };
  struct Waiter {
    size_t size;
    OneShot<StatusOr<StagingBuffer>> buffer;
  };

  // Sets the buffer, now or later. False: the caller is to let the ring grow first.
  bool TakeOrWait(size_t size, const OneShot<StatusOr<StagingBuffer>>& buffer);

  // All with mutex_ held.
  std::optional<StagingBuffer> Take(size_t size);
  std::optional<StagingBuffer> TakeSmall(size_t size);
  StagingBuffer Lend(Slot* slot, std::byte* data, size_t size);
  bool MayGrow() const;

  // One slot more.
  Task<Status> Grow(CopyEngine* engine);
  StatusOr<std::byte*> Allocate();
  void Return(Slot* slot, std::byte* data);
  void ServeWaiters(std::unique_lock<std::mutex> lock);

  const std::shared_ptr<Context> context_;
  const std::shared_ptr<PinnedRanges> pinned_;
  const size_t most_slots_;

  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::vector<Slot*> free_;
  std::vector<Slot*> cut_;  // with a small one free
  std::deque<Waiter> waiters_;
  size_t growing_ = 0;
  Status last_error_;
};

}  // namespace nacre::gpu
