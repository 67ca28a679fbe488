// Orders conflicting operations on one file or object: shared and exclusive locks on ranges of its bytes or
// blocks, for coroutines; first come first served among those that overlap, the rest pass. Thread-safe; must
// outlive its guards and those who wait.
#pragma once

#include <cstdint>
#include <list>
#include <mutex>
#include <optional>
#include <utility>

#include "common/task.h"

namespace nacre {

class RangeLock {
  struct Entry {
    uint64_t begin;
    uint64_t end;
    bool exclusive;
    bool granted;
    std::optional<OneShot<Unit>> turn;  // of one who waits
  };
  using Entries = std::list<Entry>;

 public:
  static constexpr uint64_t kEnd = ~uint64_t{0};

  class [[nodiscard]] Guard {
   public:
    Guard() = default;
    Guard(RangeLock* lock, Entries::iterator entry) : lock_(lock), entry_(entry) {}
    Guard(Guard&& other) noexcept : lock_(std::exchange(other.lock_, nullptr)), entry_(other.entry_) {}
    Guard& operator=(Guard&& other) noexcept {
      Release();
      lock_ = std::exchange(other.lock_, nullptr);
      entry_ = other.entry_;
      return *this;
    }
    ~Guard() { Release(); }
    void Release() {
      if (lock_ != nullptr) std::exchange(lock_, nullptr)->Unlock(entry_);
    }
    explicit operator bool() const { return lock_ != nullptr; }

   private:
    RangeLock* lock_ = nullptr;
    Entries::iterator entry_;
  };

  // [begin, end)
  Task<Guard> Lock(uint64_t begin, uint64_t end, bool exclusive);
  // Empty if somebody is in the way.
  Guard TryLock(uint64_t begin, uint64_t end, bool exclusive);

 private:
  bool Conflicts(Entries::iterator entry);
  void Unlock(Entries::iterator entry);

  std::mutex mutex_;
  Entries entries_;  // in order of arrival
};

}  // namespace nacre
