// A thread's work between two waits for events: for completions of RDMA, FUSE's requests, gRPC's messages.
// Tasks of an executor that it starts or resumes meanwhile it may run itself when the turn ends, which spares
// them a queue and the wake-up of another thread: on an idle machine that costs as much as the work.
//
// A turn ends where it is destroyed, on the thread that made it; one at a time on a thread. Whatever is
// resumed is so at its end, never inside the call that has set what it waits for.
#pragma once

#include <absl/container/inlined_vector.h>
#include <absl/functional/any_invocable.h>

#include "common/coroutine.h"

namespace nacre {

class Turn {
 public:
  // Of the chains that something within the turn, its end included, starts or resumes from this thread, the
  // first `chains` go on at its end; all others go to their executor.
  Turn(const Executor& executor, int chains);
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  ~Turn();

  bool has_chains() const { return !chains_.empty(); }

  // Calls `act` when this thread's turn ends, behind all its chains, if it has one that is for the executor's
  // context; else posts it.
  static void CallAtEnd(const Executor& executor, absl::AnyInvocable<void()> act);

 private:
  friend class Suspended;

  static Turn* Current(const Executor& executor);
  static bool TakesChain(const Executor& executor, Suspended* chain);

  const asio::execution_context* const context_;
  int takes_;  // so many chains more
  absl::InlinedVector<Suspended, 4> chains_;
  absl::InlinedVector<absl::AnyInvocable<void()>, 2> acts_;
};

}  // namespace nacre
