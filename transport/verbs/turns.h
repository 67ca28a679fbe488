// Gives turns on a rail: all its queue pairs together have a bounded number of bytes of transfers under way,
// and those that want to post more take turns, one work request each, so that one with much to transfer does
// not hold up the others. One that has kShare times what is left waits until it has less: the bytes of a peer
// that has died come back only when the device gives up, and the others go on with what is left. Thread-safe.
#pragma once

#include <absl/container/flat_hash_map.h>

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

  static constexpr uint64_t kShare = 4;

  explicit Turns(uint64_t bytes) : limit_(bytes) {}

  // True: it may post at once. False: OnTurn will be called, unless it leaves before.
  bool Take(const std::shared_ptr<Taker>& taker, uint64_t bytes);
  // After what this taker posted has ended. Not from within OnTurn.
  void Return(const Taker* taker, uint64_t bytes);
  // It does not wait any more, though OnTurn may be about to be called.
  void Leave(const Taker* taker);

 private:
  using Waiting = std::deque<std::pair<std::shared_ptr<Taker>, uint64_t>>;

  // A transfer that is larger than the limit goes alone.
  bool Fits(uint64_t bytes) const { return taken_ == 0 || taken_ + bytes <= limit_; }
  bool HasItsShare(const Taker* taker) const;
  void Add(const Taker* taker, uint64_t bytes);
  void Subtract(const Taker* taker, uint64_t bytes);
  // The one who may post now: the first that has not its share yet, if there is room for it.
  Waiting::iterator Next();

  const uint64_t limit_;
  std::mutex mutex_;
  uint64_t taken_ = 0;
  absl::flat_hash_map<const Taker*, uint64_t> taken_by_;
  Waiting waiting_;
};

}  // namespace nacre::verbs
