#include "common/range_lock.h"

#include <vector>

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

// Whether anybody who came earlier, holding or waiting, must go first.
bool RangeLock::Conflicts(Entries::iterator entry) {
  for (auto other = entries_.begin(); other != entry; ++other) {
    if ((entry->exclusive || other->exclusive) && Overlap(entry->ranges, other->ranges)) return true;
  }
  return false;
}

RangeLock::Guard RangeLock::TryLock(uint64_t begin, uint64_t end, bool exclusive) {
  std::lock_guard lock(mutex_);
  auto entry =
      entries_.insert(entries_.end(), Entry{Ranges(1, Range{begin, end}), exclusive, true, std::nullopt});
  if (!Conflicts(entry)) return Guard(this, entry);
  entries_.erase(entry);
  return {};
}

Task<RangeLock::Guard> RangeLock::Lock(Ranges ranges, bool exclusive) {
  Entries::iterator entry;
  {
    std::lock_guard lock(mutex_);
    entry = entries_.insert(entries_.end(), Entry{std::move(ranges), exclusive, true, std::nullopt});
    if (!Conflicts(entry)) co_return Guard(this, entry);
    entry->granted = false;
    entry->turn.emplace();
  }
  OneShot<Unit> turn = *entry->turn;  // the entry stays until its guard has gone
  co_await turn.Wait();
  co_return Guard(this, entry);
}

void RangeLock::Unlock(Entries::iterator entry) {
  std::vector<OneShot<Unit>> turns;
  {
    std::lock_guard lock(mutex_);
    auto next = entries_.erase(entry);
    for (; next != entries_.end(); ++next) {
      if (next->granted || Conflicts(next)) continue;
      next->granted = true;
      turns.push_back(*next->turn);
    }
  }
  for (OneShot<Unit>& turn : turns) turn.Set({});
}

}  // namespace nacre
