// The slots of a session in a server's store that recorded answers lie in. A slot is used again once the
// client has acknowledged the answer in it, whose record is overwritten then: a session has as many records
// as it has had mutations unacknowledged at a time, and none is ever erased while the session lasts.
//
// Not thread-safe: its owner has a lock.
#pragma once

#include <cstdint>
#include <vector>

namespace nacre {

class AnswerSlots {
 public:
  uint32_t Take() {
    if (free_.empty()) return count_++;
    const uint32_t slot = free_.back();
    free_.pop_back();
    return slot;
  }
  void Free(uint32_t slot) { free_.push_back(slot); }

  // At the start, in ascending order: the store has an answer in this slot.
  void Restore(uint32_t slot) {
    while (count_ < slot) free_.push_back(count_++);
    count_ = slot + 1;
  }

  uint32_t count() const { return count_; }  // [0, count) have been used
  bool any_free() const { return !free_.empty(); }

 private:
  uint32_t count_ = 0;
  std::vector<uint32_t> free_;
};

}  // namespace nacre
