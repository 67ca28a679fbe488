// The end of somebody's patience with an operation, which may work on his memory.
//
// The operation asks (`status`) between its steps, waits with WaitUnlessCancelled, and brackets with Use
// whatever may touch the memory; he who waits cancels, and learns through `on_idle` when nobody touches the
// memory any more, which may be long before the operation notices. Thread-safe; shared by both sides.
#pragma once

#include <absl/functional/any_invocable.h>

#include <list>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/status.h"
#include "common/task.h"

namespace nacre {

class Cancellation {
 public:
  // The memory is being touched while this lives.
  class [[nodiscard]] Use {
   public:
    Use() = default;
    explicit Use(Cancellation* owner) : owner_(owner) {}
    Use(Use&& other) noexcept : owner_(std::exchange(other.owner_, nullptr)) {}
    Use& operator=(Use&& other) noexcept {
      if (this != &other) Release();
      owner_ = std::exchange(other.owner_, nullptr);
      return *this;
    }
    ~Use() { Release(); }
    explicit operator bool() const { return owner_ != nullptr; }

   private:
    void Release() {
      if (owner_ != nullptr) std::exchange(owner_, nullptr)->End();
    }

    Cancellation* owner_ = nullptr;
  };

  // `deadline`: when it will be cancelled, for those who wait for something within their own limits.
  // `on_idle`: called once, with the reason, after a Cancel and without a Use, from within the later of the
  // two; must not call back.
  explicit Cancellation(Duration deadline = Duration::max(),
                        absl::AnyInvocable<void(const Status&)> on_idle = nullptr)
      : deadline_(deadline), on_idle_(std::move(on_idle)) {}

  // Sets an event at the cancellation, as long as this lives.
  class [[nodiscard]] Waker {
   public:
    Waker() = default;
    Waker(Cancellation* owner, std::list<OneShot<Unit>>::iterator at) : owner_(owner), at_(at) {}
    Waker(Waker&& other) noexcept : owner_(std::exchange(other.owner_, nullptr)), at_(other.at_) {}
    Waker& operator=(Waker&& other) noexcept {
      std::swap(owner_, other.owner_);
      std::swap(at_, other.at_);
      return *this;
    }
    ~Waker() {
      if (owner_ == nullptr) return;
      std::lock_guard lock(owner_->mutex_);
      owner_->wakers_.erase(at_);
    }

   private:
    Cancellation* owner_ = nullptr;
    std::list<OneShot<Unit>>::iterator at_;
  };

  // The first reason, which is an error, counts.
  void Cancel(Status why) {
    std::vector<OneShot<Unit>> events;
    {
      std::lock_guard lock(mutex_);
      if (!status_.ok()) return;
      status_ = std::move(why);
      events.assign(wakers_.begin(), wakers_.end());
      TellIfIdle();
    }
    for (OneShot<Unit>& event : events) event.Set({});
  }

  // Sets the event at once if it has been cancelled.
  Waker Wake(const OneShot<Unit>& event) {
    std::unique_lock lock(mutex_);
    Waker waker(this, wakers_.insert(wakers_.end(), event));
    const bool now = !status_.ok();
    lock.unlock();
    if (now) event.Set({});
    return waker;
  }

  // OK: go on.
  Status status() const {
    std::lock_guard lock(mutex_);
    return status_;
  }
  Duration deadline() const { return deadline_; }

  // False: it was cancelled, the memory must not be touched any more.
  Use Begin() {
    std::lock_guard lock(mutex_);
    if (!status_.ok()) return Use();
    ++uses_;
    return Use(this);
  }

 private:
  void End() {
    std::lock_guard lock(mutex_);
    --uses_;
    TellIfIdle();
  }
  void TellIfIdle() {
    if (status_.ok() || uses_ > 0 || on_idle_ == nullptr) return;
    std::exchange(on_idle_, nullptr)(status_);
  }

  const Duration deadline_;
  mutable std::mutex mutex_;
  absl::AnyInvocable<void(const Status&)> on_idle_;
  Status status_;
  int uses_ = 0;
  std::list<OneShot<Unit>> wakers_;
};

using CancellationPtr = std::shared_ptr<Cancellation>;  // null: nobody cancels

// Waits for the event or for the cancellation of the task's chain, whose status it returns then. The event
// may still be set later, by whoever was to set it.
inline Task<Status> WaitUnlessCancelled(OneShot<Unit> event) {
  const CancellationPtr cancellation = co_await CurrentCancellation();
  if (cancellation == nullptr) {
    co_await event.Wait();
    co_return OkStatus();
  }
  const Cancellation::Waker waker = cancellation->Wake(event);
  co_await event.Wait();
  co_return cancellation->status();
}

// Sleeps, or less if one of these is cancelled before.
inline Task<void> SleepUnlessCancelled(Clock& clock, Duration delay, CancellationPtr one,
                                       CancellationPtr other) {
  OneShot<Unit> over;
  Cancellation::Waker first, second;
  if (one != nullptr) first = one->Wake(over);
  if (other != nullptr) second = other->Wake(over);
  const Executor executor = co_await CurrentExecutor();
  const std::unique_ptr<TimerHandle> timer = clock.After(executor, delay, [over] { over.Set({}); });
  co_await over.Wait();
}

}  // namespace nacre
