// How the two ends of a metadata stream begin to write (frame_batcher.h): when the tasks that run already
// have had their turn, so that what they add leaves with the same frame; or when this thread's Turn ends.
//
// A base of `Stream`, which has `executor_`, `mutex_`, `outgoing_` (a FrameBatcher), `writing_` and
// Write(lock), and is kept by shared pointers. Guarded by the stream's mutex, where a lock is not handed
// over.
#pragma once

#include <mutex>
#include <utility>

#include "common/task.h"
#include "common/turn.h"

namespace nacre {

template <typename Stream>
class WritesInTurn {
 protected:
  void WriteSoon(std::unique_lock<std::mutex> lock) {
    if (stream().writing_) return;
    if (stream().outgoing_.Enough()) return stream().Write(std::move(lock));
    if (!BeginToWait()) return;
    lock.unlock();
    PostWrite();
  }

  // From now on nothing is written until PostWrite has been called, unless there is enough. False: it is so
  // already, and somebody else calls it.
  bool BeginToWait() { return !std::exchange(waits_, true); }

  // Without the mutex.
  void PostWrite() {
    Turn::CallAtEnd(stream().executor_, [self = stream().shared_from_this()] {
      std::unique_lock lock(self->mutex_);
      self->waits_ = false;
      self->Write(std::move(lock));
    });
  }

 private:
  Stream& stream() { return static_cast<Stream&>(*this); }

  bool waits_ = false;
};

}  // namespace nacre
