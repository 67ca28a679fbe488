// How long a session may take to give a revoked lease back.
//
// It has `timeout` from the revocation on. Two things give it more, each at most so much in all, so that
// nothing keeps others waiting for ever:
//
// | while …                                       | its time        | at most        |
// |-----------------------------------------------|-----------------|----------------|
// | an OST is down, which what it holds back may  | does not run    | 2 x timeout    |
// | be for; and when it is back                   | begins anew     | (in this)      |
// | a request of its own waits for others to give | does not run    | 6 x timeout    |
// | leases back, or for an OST: what it must give |                 |                |
// | back may be locked until that is answered     |                 |                |
//
// The lease of a file with an OST that is down has the first as long as it takes (late_data.h): nobody but
// who wants that file waits for it.
//
// And one takes it away: when nothing has been heard of the session until its leases have run out by the
// clock (LeasesEnd in eviction.h), it does not hold them any more, and nobody waits for it.
//
// All by the clock that runs while the MDS listens (listening_clock.h). A plain value; not thread-safe.
#pragma once

#include <algorithm>

#include "common/clock.h"

namespace nacre::mds {

class RevocationDeadline {
 public:
  // The state at a moment, which has lasted since the last Look.
  struct View {
    Duration now{0};
    Duration leases_end{0};  // by the clock, if nothing more is heard
    bool ost_down = false;
    bool waits_itself = false;
    bool only_ost = false;  // it is a file's lease, and an OST of the file is down
  };

  RevocationDeadline(Duration now, Duration timeout)
      : timeout_(timeout),
        looked_(now),
        deadline_(now + timeout),
        for_osts_(2 * timeout),
        for_waiting_(6 * timeout) {}

  // True: the time is over.
  bool Look(const View& view) {
    const Duration passed = view.now - std::exchange(looked_, view.now);
    const bool came_back = std::exchange(ost_down_, view.ost_down) && !view.ost_down;
    if (view.only_ost)
      deadline_ = view.now + timeout_;
    else if (view.ost_down)
      Extend(passed, &for_osts_);
    else if (came_back)
      Extend(view.now + timeout_ - deadline_, &for_osts_);
    else if (view.waits_itself)
      Extend(passed, &for_waiting_);
    return view.now >= deadline_ || view.now >= view.leases_end;
  }

 private:
  void Extend(Duration by, Duration* left) {
    by = std::clamp(by, Duration{0}, *left);
    *left -= by;
    deadline_ += by;
  }

  const Duration timeout_;
  Duration looked_;
  Duration deadline_;
  Duration for_osts_, for_waiting_;  // that may still be given
  bool ost_down_ = false;
};

}  // namespace nacre::mds
