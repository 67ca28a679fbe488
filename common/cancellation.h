// The end of somebody's patience with an operation that works on his memory.
//
// The operation asks (`status`) between its steps and brackets with Use whatever may touch the memory; he who
// waits cancels, and learns through `on_idle` when nobody touches the memory any more, which may be long
// before the operation notices. Thread-safe; shared by both sides.
#pragma once

#include <absl/functional/any_invocable.h>

#include <memory>
#include <mutex>
#include <utility>

#include "common/clock.h"
#include "common/status.h"

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

  // The first reason, which is an error, counts.
  void Cancel(Status why) {
    std::lock_guard lock(mutex_);
    if (!status_.ok()) return;
    status_ = std::move(why);
    TellIfIdle();
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
};

using CancellationPtr = std::shared_ptr<Cancellation>;  // null: nobody cancels

}  // namespace nacre
