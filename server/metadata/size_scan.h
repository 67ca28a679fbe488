// Whether a scan for hidden bytes is running (size_recovery.h), and which files need not wait for it.
// Thread-safe.
#pragma once

#include <absl/container/flat_hash_set.h>

#include <atomic>
#include <mutex>

#include "common/ids.h"

namespace nacre::mds {

class SizeScan {
 public:
  void Begin() { ++running_; }
  void End() {
    std::lock_guard lock(mutex_);
    if (--running_ == 0) known_.clear();
  }
  bool running() const { return running_ > 0; }

  bool Knows(const Fid& fid) const {
    std::lock_guard lock(mutex_);
    return known_.contains(fid);
  }
  void Know(const Fid& fid) {
    std::lock_guard lock(mutex_);
    if (running_ > 0) known_.insert(fid);
  }

 private:
  std::atomic<int> running_{0};
  mutable std::mutex mutex_;
  absl::flat_hash_set<Fid> known_;
};

}  // namespace nacre::mds
