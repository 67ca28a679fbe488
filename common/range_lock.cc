#include "common/range_lock.h"

#include <vector>

namespace nacre {

// Whether anybody who came earlier, holding or waiting, must go first.
bool RangeLock::Conflicts(Entries::iterator entry) {
  for (auto other = entries_.begin(); other != entry; ++other) {
    if ((entry->exclusive || other->exclusive) && other->begin < entry->end && entry->begin < other->end)
      return true;
  }
  return false;
}

RangeLock::Guard RangeLock::TryLock(uint64_t begin, uint64_t end, bool exclusive) {
  std::lock_guard lock(mutex_);
  auto entry = entries_.insert(entries_.end(), Entry{begin, end, exclusive, true, std::nullopt});
  if (!Conflicts(entry)) return Guard(this, entry);
  entries_.erase(entry);
  return {};
}

Task<RangeLock::Guard> RangeLock::Lock(uint64_t begin, uint64_t end, bool exclusive) {
  Entries::iterator entry;
  {
    std::lock_guard lock(mutex_);
    entry = entries_.insert(entries_.end(), Entry{begin, end, exclusive, true, std::nullopt});
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
