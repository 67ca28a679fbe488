// Which receives of a rail's shared queue are with the device. A queue pair that is destroyed may take some
// along, if its driver does not say when it takes no more: they never come back, and when many connections
// have ended all others would find the queue empty. So others are posted in their place.
//
// A device takes receives in the order in which they were posted. One that is away while a later one has come
// back was taken by a queue pair. If that lives, the receive comes back when its message is whole; so one
// that was posted before a queue pair left, and is away a second later, is given up. Should it come back
// after all, it is not posted again, so that there never are more than there shall be for long.
//
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>
#include <vector>

namespace nacre::verbs {

class ReceiveLedger {
 public:
  // The buffer is about to be posted.
  void Posted(uint32_t buffer);
  // It could not be.
  void NotPosted(uint32_t buffer);
  // The device has filled it. False: another was posted in its place.
  bool CameBack(uint32_t buffer);

  // A queue pair that takes receives; a number for it.
  uint64_t Joined();
  // It has been destroyed.
  void Left(uint64_t number);

  struct Losses {
    size_t missing = 0;                // others are to be posted in their place
    std::vector<uint32_t> given_back;  // nobody writes into these any more
  };
  // Returns what has been lost since the call before. Call it about once a second.
  Losses Look();

  // How many may come back although others were posted in their place.
  size_t given_up() const;

 private:
  static constexpr uint64_t kHere = 0, kGivenUp = ~uint64_t{0};
  struct GivenUp {
    uint32_t buffer = 0;
    uint64_t joined = 0;  // only queue pairs with lower numbers can have taken it
  };
  uint64_t OldestAlive() const { return alive_.empty() ? next_joined_ : *alive_.begin(); }

  mutable std::mutex mutex_;
  std::vector<uint64_t> away_;  // by buffer: kHere, kGivenUp, or its place in the order of posting
  uint64_t next_ = 1;           // place in that order
  uint64_t latest_back_ = 0;
  uint64_t left_before_ = 0;  // a queue pair left before this was posted, after the last look
  uint64_t due_before_ = 0;   // the same, before the last look
  uint64_t next_joined_ = 1;
  std::set<uint64_t> alive_;
  uint64_t oldest_alive_ = 0;  // at the last look
  std::vector<GivenUp> given_up_;
};

}  // namespace nacre::verbs
