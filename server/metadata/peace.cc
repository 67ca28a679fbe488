#include "server/metadata/peace.h"

#include <algorithm>

namespace nacre::mds {

Duration Peace::BeginsAt(Duration now, const Fid& resource) {
  std::lock_guard lock(mutex_);
  Forget(now);
  const Duration shortest = longest_ / 10;
  Last& last = last_[resource];
  if (last.length == Duration(0))
    last.length = shortest;
  else if (now < last.end + kSoon * last.length)
    last.length = std::min(4 * last.length, longest_);
  else
    last.length = std::max(last.length / 4, shortest);
  last.end = std::max(last.end, now + last.length);
  begun_.emplace_back(now, resource);
  return last.end;
}

// Of a resource that has been quiet for long, the next length is the shortest in any case.
void Peace::Forget(Duration now) {
  const Duration long_ago = now - 2 * kSoon * longest_;
  for (; !begun_.empty() && begun_.front().first < long_ago; begun_.pop_front()) {
    auto it = last_.find(begun_.front().second);
    if (it != last_.end() && it->second.end - it->second.length < long_ago) last_.erase(it);
  }
}

}  // namespace nacre::mds
