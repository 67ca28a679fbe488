// The clock by which a session's silence is judged: the time in which this MDS could have heard it.
//
// It does not run while the MDS stands still (its process is stopped, its machine suspended) nor while it is
// not sure to be the primary, for then requests wait and nobody is heard, however much was said. It never
// runs faster than the steady clock, so whoever waits by it until a session's leases have run out waits long
// enough. Thread-safe.
#pragma once

#include <atomic>
#include <mutex>
#include <utility>

#include "common/clock.h"
#include "rpc/mds_front.h"

namespace nacre::mds {

class ListeningClock {
 public:
  // `authority`: null, this is the only MDS. Both outlive this. Look is called every `step`, and before
  // somebody is judged.
  ListeningClock(Clock& clock, const Authority* authority, Duration step)
      : clock_(clock), authority_(authority), step_(step), looked_(clock.Now()) {}

  // Runs on between two calls of Look, which may set it back by what has passed since the one before: only a
  // value from just after a Look may judge somebody.
  Duration Now() const { return clock_.Now() - missed_.load(); }

  // Leaves out of the time since the last call that in which nobody could be heard.
  void Look() {
    std::lock_guard lock(mutex_);
    const Duration now = clock_.Now(), passed = now - std::exchange(looked_, now);
    if (authority_ != nullptr && !authority_->MayServe())
      missed_.store(missed_.load() + passed);
    else if (passed > 2 * step_)
      missed_.store(missed_.load() + passed - step_);
  }

 private:
  Clock& clock_;
  const Authority* const authority_;
  const Duration step_;
  std::mutex mutex_;
  Duration looked_;
  std::atomic<Duration> missed_{Duration(0)};
};

}  // namespace nacre::mds
