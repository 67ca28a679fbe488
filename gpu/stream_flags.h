// Small pieces of pinned memory that streams write to and wait for (stream_order.h). Thread-safe. A flag that
// is taken keeps the pool alive.
//
// A stream may come by long after the owner of its flags has gone: `released` only ever grows, so that no
// stream waits for ever for a value that was there once, and flags whose stream has not come are not given
// out again.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "gpu/context.h"

namespace nacre::gpu {

// The stream writes `number` to `arrived` and waits until `released` is `number` or more. A cache line.
struct alignas(64) StreamFlags {
  uint32_t arrived = 0;
  uint32_t released = 0;
  uint32_t number = 0;  // of this use

  bool HasArrived() const { return __atomic_load_n(&arrived, __ATOMIC_ACQUIRE) == number; }
  void Release() { __atomic_store_n(&released, number, __ATOMIC_RELEASE); }
  // The stream refused them: it will never come, and they can be given out again.
  void Withdraw() { __atomic_store_n(&arrived, number, __ATOMIC_RELEASE); }
};

class StreamFlagPool : public std::enable_shared_from_this<StreamFlagPool> {
 public:
  explicit StreamFlagPool(std::shared_ptr<Context> context) : context_(std::move(context)) {}
  ~StreamFlagPool();
  StreamFlagPool(const StreamFlagPool&) = delete;
  StreamFlagPool& operator=(const StreamFlagPool&) = delete;

  // With a new number, neither arrived nor released. ENOMEM.
  StatusOr<std::shared_ptr<StreamFlags>> Take();

 private:
  // All with mutex_ held.
  Status Grow();
  void FreeArrived();

  const std::shared_ptr<Context> context_;
  std::mutex mutex_;
  std::vector<void*> pages_;
  std::vector<StreamFlags*> free_;
  std::vector<StreamFlags*> awaited_;  // nobody's any more, but the stream has not come
};

}  // namespace nacre::gpu
