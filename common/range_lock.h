// Orders conflicting operations on one file or object: shared and exclusive locks on ranges of its bytes or
// blocks, for coroutines; first come first served among those that overlap, the rest pass. Several ranges are
// taken all at once: one by one, two writers with a reader between them could wait for each other.
// Readers cost nothing but their own entry while nobody writes. Thread-safe; must outlive its guards and
// those who wait.
#pragma once

#include <absl/container/inlined_vector.h>

#include <cstdint>
#include <list>
#include <mutex>
#include <optional>
#include <utility>

#include "common/task.h"

namespace nacre {

class RangeLock {
 public:
  struct Range {  // [begin, end)
    uint64_t begin;
    uint64_t end;
  };
  using Ranges = absl::InlinedVector<Range, 1>;

 private:
  struct Entry {
    Ranges ranges;
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
    friend class RangeLock;
    RangeLock* lock_ = nullptr;
    Entries::iterator entry_;
  };

  Task<Guard> Lock(uint64_t begin, uint64_t end, bool exclusive) {
    return Lock(Ranges(1, Range{begin, end}), exclusive);
  }
  // At least one; ascending and disjoint.
  Task<Guard> Lock(Ranges ranges, bool exclusive);
  // Empty if the task's chain is cancelled before (common/cancellation.h).
  Task<Guard> LockUnlessCancelled(uint64_t begin, uint64_t end, bool exclusive);
  // Empty if somebody is in the way.
  Guard TryLock(uint64_t begin, uint64_t end, bool exclusive);

 private:
  Entries::iterator Queue(Ranges ranges, bool exclusive);
  Entries::iterator Add(Ranges ranges, bool exclusive);  // these under mutex_
  void Remove(Entries::iterator entry);
  bool Conflicts(Entries::iterator entry) const;
  void Unlock(Entries::iterator entry);

  std::mutex mutex_;
  Entries entries_;       // in order of arrival
  size_t exclusive_ = 0;  // of these, granted or not
  size_t waiting_ = 0;    // of these, not granted
};

}  // namespace nacre
