// Whose turn it is on a rail: all its queue pairs together have a bounded number of bytes of transfers under
// way, and those that want to post more take turns, one work request each, so that one with much to transfer
// does not hold up the others. Thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

namespace nacre::verbs {

class Turns {
 public:
  // One that transfers. Has asked for one turn at a time.
  class Taker {
   public:
    virtual ~Taker() = default;
    // The bytes that it asked for have been taken for it. False: it does not want them any more. Called from
    // within Return, with nothing held.
    virtual bool OnTurn() = 0;
  };

  explicit Turns(uint64_t bytes) : limit_(bytes) {}

  // True: it may post at once. False: OnTurn will be called, unless it leaves before.
  bool Take(const std::shared_ptr<Taker>& taker, uint64_t bytes);
  // After what was posted has ended. Not from within OnTurn.
  void Return(uint64_t bytes);
  // It does not wait any more, though OnTurn may be about to be called.
  void Leave(const Taker* taker);

 private:
  // A transfer that is larger than the limit goes alone.
  bool Fits(uint64_t bytes) const { return taken_ == 0 || taken_ + bytes <= limit_; }

  const uint64_t limit_;
  std::mutex mutex_;
  uint64_t taken_ = 0;
  std::deque<std::pair<std::shared_ptr<Taker>, uint64_t>> waiting_;
};

}  // namespace nacre::verbs
