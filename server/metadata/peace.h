// For how long nobody is granted a lease after a conflict: where several clients work, a request to the MDS
// costs each of them less than a revocation; where one change meets many who look, as a new directory in a
// tree that all share, they should have their lease back soon. So it is a tenth of the longest at first, and
// four times as long each time that conflicts follow each other soon. Thread-safe.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <deque>
#include <mutex>
#include <utility>

#include "common/clock.h"
#include "common/ids.h"

namespace nacre::mds {

class Peace {
 public:
  explicit Peace(Duration longest) : longest_(longest) {}

  // A request meets leases of the resource that conflict with it. Returns until when nobody is granted
  // another.
  Duration BeginsAt(Duration now, const Fid& resource);

 private:
  // Of a resource, as the last conflict has left it. A conflict comes soon if it is less than kSoon lengths
  // behind the end.
  static constexpr int kSoon = 8;
  struct Last {
    Duration length{0}, end{0};
  };

  void Forget(Duration now);

  const Duration longest_;
  std::mutex mutex_;
  absl::flat_hash_map<Fid, Last> last_;
  std::deque<std::pair<Duration, Fid>> begun_;  // in the order of time
};

}  // namespace nacre::mds
