#include "transport/verbs/turns.h"

#include <algorithm>

namespace nacre::verbs {

bool Turns::Take(const std::shared_ptr<Taker>& taker, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  const bool fits = waiting_.empty() && Fits(bytes);
  if (fits) {
    taken_ += bytes;
  } else {
    waiting_.emplace_back(taker, bytes);
  }
  return fits;
}

void Turns::Return(uint64_t bytes) {
  std::unique_lock lock(mutex_);
  taken_ -= bytes;
  while (!waiting_.empty() && Fits(waiting_.front().second)) {
    const auto [taker, wanted] = std::move(waiting_.front());
    waiting_.pop_front();
    taken_ += wanted;
    lock.unlock();
    const bool posts = taker->OnTurn();
    lock.lock();
    if (!posts) taken_ -= wanted;
  }
}

void Turns::Leave(const Taker* taker) {
  std::lock_guard lock(mutex_);
  std::erase_if(waiting_, [&](const auto& waiter) { return waiter.first.get() == taker; });
}

}  // namespace nacre::verbs
