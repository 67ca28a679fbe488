// Until when this OSS may serve clients without hearing from the MGS.
//
// The MGS admits an OSS when every fence that its OSTs have missed is caught up, and from then on each
// heartbeat that is answered renews the lease: it lasts for `length` from the moment at which the heartbeat
// (or the registration) was *sent*. An OSS that is cut off from the MGS cannot be told of an eviction; when
// its lease has run out it refuses every client, and the MGS, which counts from the later moment of the
// answer and adds an allowance for clocks that run at different speeds (common/lease_time.h), may take it
// that nothing of an evicted session arrives there any more.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <cerrno>

#include "common/clock.h"
#include "common/status.h"

namespace nacre::ost {

class ServiceLease {
 public:
  // By the clock of this process. A length of 0: the MGS sets no limit.
  void Renew(Duration sent, Duration length) {
    valid_until_.store(length > Duration{0} ? sent + length : Duration::max());
  }

  // ECONNRESET: not admitted yet, or not heard of for too long; the caller asks again until it is.
  Status Check(Duration now) const {
    if (now < valid_until_.load()) return OkStatus();
    return ErrnoError(ECONNRESET, "this server serves nobody until the MGS has admitted it (again)");
  }

 private:
  std::atomic<Duration> valid_until_{Duration::min()};
};

}  // namespace nacre::ost
