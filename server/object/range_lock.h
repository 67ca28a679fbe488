// Locks on block ranges of one object, for coroutines: readers share, writers exclude; first come first
// served among those that overlap, the rest pass. Thread-safe; must outlive its guards and waiters.
#pragma once

#include <cstdint>
#include <list>
#include <mutex>
#include <utility>

#include "common/task.h"

namespace nacre::ost {

class RangeLock {
 public:
  static constexpr uint64_t kEnd = ~uint64_t{0};

  class [[nodiscard]] Guard;

  // Blocks [first, end).
  Task<Guard> Lock(uint64_t first, uint64_t end, bool exclusive);

 private:
  struct Entry {
    uint64_t first;
    uint64_t end;
    bool exclusive;
    bool held;
    OneShot<Unit> turn;
  };
  using Place = std::list<Entry>::iterator;

  static bool Conflict(const Entry& a, const Entry& b) {
    return a.first < b.end && b.first < a.end && (a.exclusive || b.exclusive);
  }
  bool Blocked(Place entry);
  void Unlock(Place entry);

  std::mutex mutex_;
  std::list<Entry> entries_;  // in order of arrival

 public:
  class Guard {
   public:
    Guard() = default;
    Guard(RangeLock* lock, Place place) : lock_(lock), place_(place) {}
    Guard(Guard&& other) noexcept : lock_(std::exchange(other.lock_, nullptr)), place_(other.place_) {}
    Guard& operator=(Guard&& other) noexcept {
      Release();
      lock_ = std::exchange(other.lock_, nullptr);
      place_ = other.place_;
      return *this;
    }
    ~Guard() { Release(); }
    void Release() {
      if (lock_ != nullptr) std::exchange(lock_, nullptr)->Unlock(place_);
    }

   private:
    RangeLock* lock_ = nullptr;
    Place place_;
  };
};

}  // namespace nacre::ost
