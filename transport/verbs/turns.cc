#include "transport/verbs/turns.h"

#include <algorithm>

namespace nacre::verbs {

bool Turns::HasItsShare(const Taker* taker) const {
  const auto own = taken_by_.find(taker);
  return own != taken_by_.end() && own->second >= kShare * (limit_ - std::min(limit_, taken_));
}

void Turns::Add(const Taker* taker, uint64_t bytes) {
  taken_ += bytes;
  taken_by_[taker] += bytes;
}

void Turns::Subtract(const Taker* taker, uint64_t bytes) {
  taken_ -= bytes;
  const auto own = taken_by_.find(taker);
  if ((own->second -= bytes) == 0) taken_by_.erase(own);
}

Turns::Waiting::iterator Turns::Next() {
  const auto next = std::find_if(waiting_.begin(), waiting_.end(),
                                 [&](const auto& waiter) { return !HasItsShare(waiter.first.get()); });
  return next != waiting_.end() && Fits(next->second) ? next : waiting_.end();
}

bool Turns::Take(const std::shared_ptr<Taker>& taker, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  waiting_.emplace_back(taker, bytes);
  if (Next() != std::prev(waiting_.end())) return false;
  waiting_.pop_back();
  Add(taker.get(), bytes);
  return true;
}

void Turns::Return(const Taker* taker, uint64_t bytes) {
  std::unique_lock lock(mutex_);
  Subtract(taker, bytes);
  for (auto next = Next(); next != waiting_.end(); next = Next()) {
    const auto [waiter, wanted] = std::move(*next);
    waiting_.erase(next);
    Add(waiter.get(), wanted);
    lock.unlock();
    const bool posts = waiter->OnTurn();
    lock.lock();
    if (!posts) Subtract(waiter.get(), wanted);
  }
}

void Turns::Leave(const Taker* taker) {
  std::lock_guard lock(mutex_);
  std::erase_if(waiting_, [&](const auto& waiter) { return waiter.first.get() == taker; });
}

}  // namespace nacre::verbs
