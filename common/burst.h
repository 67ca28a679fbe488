// Gathers the tasks that one event starts or resumes, such as a frame of many messages.
//
// While a Burst lives, the chains gather that its thread starts or resumes on the executor. At its end they
// go there together: the executor's queue, a mutex of all its threads, is used a few times instead of once
// for each. Whichever of the threads come by share them, so that one that is held up holds up no other; as
// far as one thread resumes them, it does so in the order in which they came.
//
// Ends on the thread that made it. One within another gathers until its own end. A Turn of the thread
// (turn.h) takes its chains first.
#pragma once

#include <vector>

#include "common/coroutine.h"

namespace nacre {

class Burst {
 public:
  // The executor must outlive it.
  explicit Burst(const Executor& executor);
  Burst(const Burst&) = delete;
  Burst& operator=(const Burst&) = delete;
  ~Burst();

 private:
  friend class Suspended;

  static bool TakesChain(const Executor& executor, Suspended* chain);

  const Executor& executor_;
  Burst* const outer_;  // of this thread
  std::vector<Suspended> chains_;
};

}  // namespace nacre
