// A door for all operations of a filesystem: many pass at once; whoever closes it waits until all are through
// and keeps new ones out until it opens again. An operation must not enter twice. Thread-safe; must outlive
// its passes.
#pragma once

#include <atomic>
#include <cerrno>
#include <mutex>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/status.h"
#include "common/task.h"

namespace nacre::client {

// The error of an operation that was cancelled while it waited to begin.
inline Status GivenUp() { return ErrnoError(EINTR, "nobody waits for this operation any more"); }

class Gate {
 public:
  class [[nodiscard]] Pass {
   public:
    Pass() = default;
    explicit Pass(Gate* gate) : gate_(gate) {}
    Pass(Pass&& other) noexcept : gate_(std::exchange(other.gate_, nullptr)) {}
    Pass& operator=(Pass&& other) noexcept {
      Leave();
      gate_ = std::exchange(other.gate_, nullptr);
      return *this;
    }
    ~Pass() { Leave(); }
    void Leave() {
      if (gate_ != nullptr) std::exchange(gate_, nullptr)->Out();
    }
    explicit operator bool() const { return gate_ != nullptr; }

   private:
    Gate* gate_ = nullptr;
  };

  // The quick way in; empty while the gate is closed.
  Pass TryEnter();
  Task<Pass> Enter();
  // Empty if the task's chain is cancelled before (common/cancellation.h).
  Task<Pass> EnterUnlessCancelled();

  // One closer at a time: the others wait for their turn.
  Task<void> Close();
  // As Close, for those who do not know that everybody inside comes out soon (one may be waiting for a server
  // that is dead): keeps others out for moments only, and opens for longer in between, until nobody is
  // inside.
  Task<void> CloseBetween(Clock& clock);
  void Open();

 private:
  Pass EnterOrQueue(const OneShot<Unit>& opened);
  void Out();
  // Closes it in its turn. True: nobody is inside; else `empty` is set when that is so.
  Task<bool> Shut(OneShot<Unit> empty);

  static constexpr uint64_t kClosed = 1, kOne = 2;

  AsyncMutex closer_;
  AsyncMutex::Guard closed_by_;
  // Each operation passes twice: kOne for each that is inside, and kClosed, which changes with the mutex
  // held.
  std::atomic<uint64_t> state_{0};
  std::mutex mutex_;
  std::vector<OneShot<Unit>> outside_;
  std::vector<OneShot<Unit>> empty_;
};

}  // namespace nacre::client
