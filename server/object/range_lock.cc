#include "server/object/range_lock.h"

namespace nacre::ost {

Task<RangeLock::Guard> RangeLock::Lock(uint64_t first, uint64_t end, bool exclusive) {
  Place entry;
  OneShot<Unit> turn;
  {
    std::lock_guard lock(mutex_);
    entries_.push_back({first, end, exclusive, false, turn});
    entry = std::prev(entries_.end());
    if (!Blocked(entry)) {
      entry->held = true;
      co_return Guard(this, entry);
    }
  }
  co_await turn.Wait();
  co_return Guard(this, entry);
}

bool RangeLock::Blocked(Place entry) {
  for (Place before = entries_.begin(); before != entry; ++before) {
    if (Conflict(*before, *entry)) return true;
  }
  return false;
}

void RangeLock::Unlock(Place entry) {
  std::lock_guard lock(mutex_);
  entries_.erase(entry);
  for (Place waiting = entries_.begin(); waiting != entries_.end(); ++waiting) {
    if (waiting->held || Blocked(waiting)) continue;
    waiting->held = true;
    waiting->turn.Set({});
  }
}

}  // namespace nacre::ost
