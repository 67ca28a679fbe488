#include "common/range_lock.h"

#include <iterator>
#include <vector>

#include "common/cancellation.h"

namespace nacre {
namespace {

bool Overlap(const RangeLock::Ranges& a, const RangeLock::Ranges& b) {
  for (auto one = a.begin(), other = b.begin(); one != a.end() && other != b.end();) {
    if (one->begin < other->end && other->begin < one->end) return true;
    if (one->end <= other->begin) {
      ++one;
    } else {
      ++other;
    }
  }
  return false;
}

}  // namespace

RangeLock::Entries::iterator RangeLock::Add(Ranges ranges, bool exclusive) {
  exclusive_ += exclusive ? 1 : 0;
  return entries_.insert(entries_.end(), Entry{std::move(ranges), exclusive, true, std::nullopt});
}

void RangeLock::Remove(Entries::iterator entry) {
  exclusive_ -= entry->exclusive ? 1 : 0;
  waiting_ -= entry->granted ? 0 : 1;
  entries_.erase(entry);
}

// Whether anybody who came earlier, holding or waiting, must go first.
bool RangeLock::Conflicts(Entries::iterator entry) const {
  if (exclusive_ == 0) return false;
  for (auto other = entries_.begin(); other != entry; ++other) {
    if ((entry->exclusive || other->exclusive) && Overlap(entry->ranges, other->ranges)) return true;
  }
  return false;
}

RangeLock::Guard RangeLock::TryLock(uint64_t begin, uint64_t end, bool exclusive) {
  std::lock_guard lock(mutex_);
  const auto entry = Add(Ranges(1, Range{begin, end}), exclusive);
  if (!Conflicts(entry)) return Guard(this, entry);
  Remove(entry);
  return {};
}

// Granted at once, or waiting for its turn. It stays until its guard has gone.
RangeLock::Entries::iterator RangeLock::Queue(Ranges ranges, bool exclusive) {
  std::lock_guard lock(mutex_);
  const auto entry = Add(std::move(ranges), exclusive);
  if (Conflicts(entry)) {
    entry->granted = false;
    entry->turn.emplace();
    ++waiting_;
  }
  return entry;
}

Task<RangeLock::Guard> RangeLock::Lock(Ranges ranges, bool exclusive) {
  Guard guard(this, Queue(std::move(ranges), exclusive));
  std::optional<OneShot<Unit>> turn = guard.entry_->turn;
  if (turn) co_await turn->Wait();
  co_return guard;
}

Task<RangeLock::Guard> RangeLock::LockUnlessCancelled(uint64_t begin, uint64_t end, bool exclusive) {
  Guard guard(this, Queue(Ranges(1, Range{begin, end}), exclusive));
  std::optional<OneShot<Unit>> turn = guard.entry_->turn;
  if (!turn) co_return guard;
  Status waited = co_await WaitUnlessCancelled(*turn);
  if (!waited.ok()) guard.Release();  // granted meanwhile or not: whoever waits behind it may go on
  co_return guard;
}

void RangeLock::Unlock(Entries::iterator entry) {
  std::vector<OneShot<Unit>> turns;
  {
    std::lock_guard lock(mutex_);
    auto next = std::next(entry);
    Remove(entry);
    for (; next != entries_.end() && waiting_ > 0; ++next) {
      if (next->granted || Conflicts(next)) continue;
      next->granted = true;
      --waiting_;
      turns.push_back(*next->turn);
    }
  }
  for (OneShot<Unit>& turn : turns) turn.Set({});
}

}  // namespace nacre
