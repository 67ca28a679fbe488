// How much the servers together may be putting through one rail of a client at a time, so that many that
// answer at once do not swamp it (incast): a call takes the bytes of its memory before it is sent and gives
// them back when it is over. First come, first served; small calls have a part of the budget to themselves
// and wait for nothing but each other. An owner (the way to one server) that has kShare times what is left
// waits until it has less, so that a server which does not answer leaves some to the others. A call that is
// larger than the budget has it alone. Thread-safe.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include "common/status.h"
#include "common/task.h"

namespace nacre::verbs {

inline constexpr uint64_t kSmallCall = 64 << 10;  // bytes of its memory

class PutBudget : public std::enable_shared_from_this<PutBudget> {
 public:
  // Given back at destruction.
  class [[nodiscard]] Share {
   public:
    Share() = default;
    Share(std::shared_ptr<PutBudget> budget, uint64_t bytes, const void* owner)
        : budget_(std::move(budget)), bytes_(bytes), owner_(owner) {}
    Share(Share&&) = default;
    ~Share() {
      if (budget_ != nullptr) budget_->Return(bytes_, owner_);
    }

   private:
    std::shared_ptr<PutBudget> budget_;
    uint64_t bytes_ = 0;
    const void* owner_ = nullptr;
  };

  static constexpr uint64_t kShare = 4;

  // At least 1 MiB.
  explicit PutBudget(uint64_t bytes);

  // True: taken, Share is to give it back. False: `granted` is set when it has been taken, unless somebody
  // sets it before, who then does not want it any more. `owner`: whose bytes count together; for Cancel.
  bool Take(uint64_t bytes, const void* owner, const OneShot<Status>& granted);

  // Ends the waiting of all that this owner has asked for.
  void Cancel(const void* owner, const Status& why);

 private:
  struct Waiter {
    uint64_t bytes = 0;
    const void* owner = nullptr;
    OneShot<Status> granted;
  };
  struct Lane {
    uint64_t left() const { return limit - std::min(limit, taken); }
    bool Fits(uint64_t bytes) const { return taken == 0 || bytes <= left(); }
    bool HasItsShare(const void* owner) const;
    // The one who may go now: the first that has not its share yet, if there is room for it.
    std::deque<Waiter>::iterator Next();
    void Add(const Waiter& waiter);

    uint64_t limit = 0, taken = 0;
    absl::flat_hash_map<const void*, uint64_t> taken_by;
    std::deque<Waiter> waiting;
  };

  Lane& LaneOf(uint64_t bytes) { return bytes <= kSmallCall ? small_ : large_; }
  void Return(uint64_t bytes, const void* owner);

  std::mutex mutex_;
  Lane small_, large_;
};

}  // namespace nacre::verbs
