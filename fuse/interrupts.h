// Lets callers go that are being killed while their request waits for a server.
//
// The kernel keeps a caller until its request is answered, kill -9 or not. It tells of a signal
// (FUSE_INTERRUPT), but only of the first one and not which it was; most must not end a request, for programs
// do not expect EINTR from a write to a file because a timer has run out or a child has ended. So the caller
// is looked up in /proc, when a signal has come and then again and again as long as the request waits
// (caller_state.h). One that is ending is answered EINTR, and the waits of the request's task are cancelled;
// what has been sent to a server already is carried out.
//
// Internal to fuse/. Thread-safe. Owns a thread, from the first signal on.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "fuse/answer.h"

namespace nacre::fuse {

class Interrupts {
 public:
  explicit Interrupts(Clock& clock) : clock_(clock) {}
  ~Interrupts() { Stop(); }
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  // From now on until its answer is taken the request may be answered early.
  void Watch(const std::shared_ptr<Answer>& answer);

  // Cancels the waits of all that is watched, now and from now on: nobody waits for answers any more.
  void CancelAll();
  void Stop();

 private:
  struct Watched {
    std::shared_ptr<Answer> answer;
    Duration since{0};  // of its signal, or of the beginning of a Patience::kUntilExit
    bool signalled = false;
    bool told = false;       // Answer::Signal has been called
    bool looked_at = false;  // by the thread, again and again
  };

  friend class Answer;

  void Forget(fuse_req_t request);  // it is about to be answered
  static void OnInterrupt(fuse_req_t request, void* self);
  void Interrupted(fuse_req_t request);
  void LookAfter(Watched& watched);
  void Run();

  Clock& clock_;
  std::mutex mutex_;
  std::condition_variable wake_;
  absl::flat_hash_map<fuse_req_t, Watched> watched_;
  size_t looked_at_ = 0;  // of these
  bool news_ = false;     // a signal that the thread has not looked at
  bool resting_ = false;  // the thread waits until it is woken
  bool all_cancelled_ = false;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace nacre::fuse
