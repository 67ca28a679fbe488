// A second, small process beside a server, which sees the server's process end, whatever ends it, and tells
// of it: those who wait until the server can serve nobody any more need not wait for its lease then.
//
// It holds a pidfd of the process, so it speaks only when every thread of that has ended and all its
// connections are closed. It is a process group of its own and outlives SIGTERM to the whole unit, by as long
// as the telling takes. An end that takes it along (the machine's, its container's, SIGKILL to the unit)
// leaves nobody to tell, and the lease decides, as it does for a server that stands still or is cut off.
#pragma once

#include <cstdint>
#include <functional>

#include "common/status.h"

namespace nacre {

class EndWitness {
 public:
  // Begins the second process, by fork: call while this process has one thread and holds nothing. `tell` runs
  // there, once, after this process has ended, with what was given to Set last; if that was never called it
  // does not run. Error: the kernel has no pidfds, or there is no room for a process.
  static StatusOr<EndWitness> Start(std::function<void(uint64_t)> tell);
  ~EndWitness();
  EndWitness(EndWitness&& other) noexcept;
  EndWitness& operator=(EndWitness&&) = delete;

  // From now on `tell` gets this.
  void Set(uint64_t instance);

 private:
  explicit EndWitness(int pipe) : pipe_(pipe) {}
  int pipe_;
};

}  // namespace nacre
