// The one answer that the kernel gets to a request. Two may give it: the task that carries the request out,
// and Interrupts, when the caller is being killed while the task still waits for a server. The one that takes
// the request first answers it; the other finds that it is gone. Internal to fuse/. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "common/cancellation.h"
#include "fuse/libfuse.h"

namespace nacre::fuse {

// How long a request may keep its caller.
enum class Patience {
  kUntilSignal,  // until a signal ends the caller
  kUntilExit,    // the same, and the caller may be past its last signal: a close at exit (FLUSH)
  kForEver,      // nobody waits for it (RELEASE)
};

class Interrupts;

class Answer {
 public:
  Answer(fuse_req_t request, uint32_t caller_pid, Patience patience)
      : pid(caller_pid), patience(patience), request_(request) {}

  const uint32_t pid;  // of the calling thread; 0: it cannot be seen from here
  const Patience patience;

  // The request, for one of libfuse's replies. Null: it has been answered.
  fuse_req_t Take();

  // Ends the waits of the request's task; the task itself goes on to its end. Part of `owner`.
  static CancellationPtr CancellationOf(const std::shared_ptr<Answer>& owner) {
    return CancellationPtr(owner, &owner->cancellation_);
  }
  void Cancel(Status why) { cancellation_.Cancel(std::move(why)); }

  // To be called when a signal has met the caller, whichever it is. Set before the task first waits.
  void OnSignal(std::function<void()> function) { on_signal_ = std::move(function); }
  void Signal() {
    if (on_signal_) on_signal_();
  }

  // Whether the task has ended; what it worked on is free then.
  bool task_ended() const { return task_ended_.load(std::memory_order_acquire); }
  void TaskEnds() { task_ended_.store(true, std::memory_order_release); }

  // Lives as long as the task: the buffer with the bytes that it writes.
  void Keep(std::shared_ptr<std::byte> buffer) { buffer_ = std::move(buffer); }

 private:
  friend class Interrupts;

  Cancellation cancellation_;
  std::function<void()> on_signal_;
  std::shared_ptr<std::byte> buffer_;
  std::atomic<bool> task_ended_{false};
  std::mutex mutex_;  // before that of Interrupts
  fuse_req_t request_;
  Interrupts* watched_by_ = nullptr;
};

}  // namespace nacre::fuse
