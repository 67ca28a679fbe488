#include "transport/verbs/put_budget.h"

namespace nacre::verbs {
namespace {

constexpr uint64_t kLeast = 1 << 20;
constexpr uint64_t kPartOfSmall = 8;

}  // namespace

PutBudget::PutBudget(uint64_t bytes) {
  bytes = std::max(bytes, kLeast);
  small_.limit = bytes / kPartOfSmall;
  large_.limit = bytes - small_.limit;
}

bool PutBudget::Take(uint64_t bytes, const void* owner, const OneShot<Status>& granted) {
  std::lock_guard lock(mutex_);
  Lane& lane = LaneOf(bytes);
  const bool fits = lane.waiting.empty() && lane.Fits(bytes);
  if (fits) {
    lane.taken += bytes;
  } else {
    lane.waiting.push_back({bytes, owner, granted});
  }
  return fits;
}

void PutBudget::Return(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  Lane& lane = LaneOf(bytes);
  lane.taken -= bytes;
  while (!lane.waiting.empty()) {
    const Waiter& next = lane.waiting.front();
    if (!next.granted.IsSet() && !lane.Fits(next.bytes)) return;
    if (next.granted.Set(OkStatus())) lane.taken += next.bytes;
    lane.waiting.pop_front();
  }
}

void PutBudget::Cancel(const void* owner, const Status& why) {
  std::lock_guard lock(mutex_);
  for (Lane* lane : {&small_, &large_}) {
    for (const Waiter& waiter : lane->waiting) {
      if (waiter.owner == owner) waiter.granted.Set(why);
    }
  }
}

}  // namespace nacre::verbs
