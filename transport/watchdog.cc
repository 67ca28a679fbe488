#include "transport/watchdog.h"

#include <algorithm>

namespace nacre {

void Watchdog::Arm(Duration deadline) {
  if (deadline >= armed_.load(std::memory_order_acquire)) return;  // as nearly always
  std::lock_guard lock(mutex_);
  if (stopped_ || deadline >= armed_.load()) return;
  SetTimer(deadline);
}

void Watchdog::Stop() {
  std::lock_guard lock(mutex_);
  stopped_ = true;
  timer_.reset();
}

void Watchdog::SetTimer(Duration deadline) {
  armed_ = deadline;
  ++generation_;
  Duration delay = std::max(deadline - clock_.Now(), Duration::zero());
  timer_ = clock_.After(executor_, delay, [weak = weak_from_this(), generation = generation_] {
    if (auto self = weak.lock()) self->Fire(generation);
  });
}

void Watchdog::Fire(uint64_t generation) {
  std::lock_guard expiring(expire_mutex_);
  {
    std::lock_guard lock(mutex_);
    if (stopped_ || generation != generation_) return;
    armed_ = kNoDeadline;
  }
  Arm(expire_(clock_.Now()));
}

}  // namespace nacre
