// Which requests wait until others have given leases back, for whoever asks why something takes so long
// (nacre status --directory). Each wait is an object in the frame of who waits. Thread-safe.
#pragma once

#include <list>
#include <mutex>
#include <vector>

#include "common/clock.h"
#include "common/ids.h"

namespace nacre::mds {

class RecallWaits {
 public:
  struct Known {
    SessionId session = 0;       // whose request it is; 0: the server's own
    std::vector<Fid> resources;  // of the leases
    bool change = false;         // it changes something; else it looks
    Duration since{0};
  };

  class [[nodiscard]] Wait {
   public:
    Wait(RecallWaits& waits, Known known);
    ~Wait();
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

   private:
    RecallWaits& waits_;
    std::list<Known>::iterator place_;
  };

  // Those for one of these, the longest first.
  std::vector<Known> For(const std::vector<Fid>& resources) const;

 private:
  mutable std::mutex mutex_;
  std::list<Known> waits_;  // in the order in which they began
};

}  // namespace nacre::mds
