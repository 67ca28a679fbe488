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

bool PutBudget::Lane::HasItsShare(const void* owner) const {
  const auto own = taken_by.find(owner);
  return own != taken_by.end() && own->second >= kShare * left();
}

std::deque<PutBudget::Waiter>::iterator PutBudget::Lane::Next() {
  std::erase_if(waiting, [](const Waiter& waiter) { return waiter.granted.IsSet(); });
  const auto next = std::find_if(waiting.begin(), waiting.end(),
                                 [&](const Waiter& waiter) { return !HasItsShare(waiter.owner); });
  return next != waiting.end() && Fits(next->bytes) ? next : waiting.end();
}

void PutBudget::Lane::Add(const Waiter& waiter) {
  taken += waiter.bytes;
  taken_by[waiter.owner] += waiter.bytes;
}

bool PutBudget::Take(uint64_t bytes, const void* owner, const OneShot<Status>& granted) {
  std::lock_guard lock(mutex_);
  Lane& lane = LaneOf(bytes);
  lane.waiting.push_back({bytes, owner, granted});
  const auto next = lane.Next();
  if (next == lane.waiting.end() || std::next(next) != lane.waiting.end()) return false;
  lane.Add(*next);
  lane.waiting.pop_back();
  return true;
}

void PutBudget::Return(uint64_t bytes, const void* owner) {
  std::lock_guard lock(mutex_);
  Lane& lane = LaneOf(bytes);
  lane.taken -= bytes;
  if ((lane.taken_by[owner] -= bytes) == 0) lane.taken_by.erase(owner);
  for (auto next = lane.Next(); next != lane.waiting.end(); next = lane.Next()) {
    if (next->granted.Set(OkStatus())) lane.Add(*next);
    lane.waiting.erase(next);
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
