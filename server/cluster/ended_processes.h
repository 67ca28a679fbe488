// The OSS processes that have ended, as far as that was told (HeartbeatRequest.ended). The requests of such a
// process may still be under way: a registration waits for the store, for fences, for other members. It must
// not bring up what nobody serves.
//
// Bounded: the newest kMost ends are known, far more than can be told while a registration waits.
// Thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <mutex>

#include "common/status.h"

namespace nacre::cluster {

class EndedProcesses {
 public:
  static constexpr size_t kMost = 4096;

  void Note(uint64_t instance) {
    std::lock_guard lock(mutex_);
    if (HasLocked(instance)) return;
    if (ended_.size() == kMost) ended_.pop_front();
    ended_.push_back(instance);
  }
  // UNAVAILABLE: the process has ended. Asked under the lock under which it is then noted that the process is
  // there, so that an end that is told from then on finds it.
  Status CheckRuns(uint64_t instance) const {
    std::lock_guard lock(mutex_);
    if (!HasLocked(instance)) return OkStatus();
    return absl::UnavailableError("the process that registers has ended meanwhile");
  }

 private:
  bool HasLocked(uint64_t instance) const { return std::ranges::find(ended_, instance) != ended_.end(); }

  mutable std::mutex mutex_;
  std::deque<uint64_t> ended_;  // oldest first
};

}  // namespace nacre::cluster
