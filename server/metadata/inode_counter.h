// The number of inodes of an MDT, as the sum of several counters (slots), each in a record of its own:
// commits that change it at the same time take different ones, so none waits for another's commit. Which slot
// counts which inode means nothing: one may be negative. Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <mutex>
#include <vector>

#include "common/task.h"
#include "server/kv/kv_store.h"

namespace nacre::mds {

class InodeCounter {
 public:
  // A counter that nobody else changes until this is destroyed.
  class [[nodiscard]] Slot {
   public:
    Slot(InodeCounter* owner, uint8_t number) : owner_(owner), number_(number) {}
    Slot(Slot&& other) noexcept : owner_(std::exchange(other.owner_, nullptr)), number_(other.number_) {}
    Slot& operator=(Slot&&) = delete;
    ~Slot() {
      if (owner_ != nullptr) owner_->GiveBack(number_);
    }

    uint8_t number() const { return number_; }
    int64_t value() const { return owner_->values_[number_]; }
    void Set(int64_t value) { owner_->values_[number_] = value; }  // once it is in the store

   private:
    InodeCounter* owner_;
    uint8_t number_;
  };

  InodeCounter();

  // Before anything else. Errors are the store's; DATA_LOSS for a damaged record.
  Status Load(KvStore& store);

  // Waits while as many commits are under way as there are slots.
  Task<Slot> Take();

  uint64_t Sum() const;

 private:
  static constexpr uint8_t kSlots = 32;

  void GiveBack(uint8_t number);

  std::array<std::atomic<int64_t>, kSlots> values_{};
  std::mutex mutex_;
  std::vector<uint8_t> free_;  // the last one is taken first: a lone client changes one record only
  std::deque<OneShot<Unit>> waiters_;
};

}  // namespace nacre::mds
