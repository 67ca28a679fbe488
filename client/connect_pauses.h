// How long a session waits before it tries again to connect, and for a server that it is connected to.
#pragma once

#include <algorithm>
#include <utility>

#include "rpc/object_stub.h"

namespace nacre::client {

// The pauses between attempts to connect: short ones until each server has been asked once, then ever longer
// ones.
class ConnectPauses {
 public:
  ConnectPauses(const RetryPolicy& policy, size_t servers)
      : servers_(servers), pause_(policy.pause), max_pause_(policy.max_pause) {}

  bool all_asked() const { return failed_ % servers_ == 0; }
  void Failed() { ++failed_; }
  // The one before the next attempt.
  Duration Next() {
    if (!all_asked()) return std::min(pause_, kToNextServer);
    return std::exchange(pause_, std::min(2 * pause_, max_pause_));
  }
  Duration pause() const { return pause_; }
  // For the answer of a server that answers at once if it serves. At first a short time, so that one that is
  // frozen does not cost the lease, and longer in each round, in case that all are slow.
  Duration patience(Duration most) const {
    const size_t round = std::min(failed_ / servers_, size_t{8});
    return std::min(most, kFirstPatience * (1 << round));
  }

  static constexpr Duration kFirstPatience = std::chrono::seconds(1);
  static constexpr Duration kToNextServer = std::chrono::milliseconds(100);

 private:
  const size_t servers_;
  size_t failed_ = 0;
  Duration pause_;
  const Duration max_pause_;
};

}  // namespace nacre::client
