// The FIDs that the MDS has given a session for what this client makes before the MDS has heard of it. Not
// thread-safe.
#pragma once

#include <cstdint>

#include "common/ids.h"

namespace nacre::client {

class OwnFids {
 public:
  // A session, in this epoch, may use all FIDs of the sequence; 0: none. This may be said twice of one
  // session: no FID is given out twice.
  void Begin(uint64_t epoch, uint64_t sequence) {
    epoch_ = epoch;
    if (last_.sequence != sequence) last_ = {sequence, 0, 0};
  }
  // Sessions of earlier epochs have ended.
  void EndBefore(uint64_t epoch) {
    if (epoch_ < epoch) last_ = {};
  }
  bool any() const { return last_.sequence != 0 && last_.object != UINT32_MAX; }
  // One that nobody has, if there are any left.
  Fid Next() {
    ++last_.object;
    return last_;
  }

 private:
  Fid last_;  // that was given out
  uint64_t epoch_ = 0;
};

}  // namespace nacre::client
