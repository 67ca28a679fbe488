#include "common/runtime.h"

#include <algorithm>

#include "common/guests.h"

namespace nacre {
namespace {

// Between two looks of a thread that helps: after it has found work; at most, while the thread before it
// works; and at most, when that is idle. From the first it doubles: most of the time the first thread is
// enough, and each look wakes a core that others could use.
constexpr Duration kHelping = std::chrono::microseconds(100);
constexpr Duration kWatching = std::chrono::milliseconds(4);
constexpr Duration kIdle = std::chrono::milliseconds(200);
// Tasks that a thread has run between two looks if it has work: an idle server, too, has timers that tick.
constexpr uint64_t kWork = 16;
// Between two looks of a thread that stands in whether it still has to; and how long it does so for nothing.
constexpr Duration kStandingIn = std::chrono::milliseconds(1);
constexpr Duration kForNothing = std::chrono::milliseconds(50);

}  // namespace

Runtime::Runtime(int threads)
    : context_(threads), work_(context_.get_executor()), done_(static_cast<size_t>(std::max(threads, 1))) {
  Guests::MakeFor(&context_);
  threads_.emplace_back([this] { Lead(); });
  for (size_t i = 1; i < done_.size(); ++i) threads_.emplace_back([this, i] { Help(i); });
}

void Runtime::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_all();
  Guests::Of(executor())->Close();
  context_.stop();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void Runtime::Lead() {
  while (context_.run_one() > 0) done_[0].fetch_add(1, std::memory_order_relaxed);
}

// While the thread before it is idle it looks less and less often: an idle process should be idle.
void Runtime::Help(size_t number) {
  uint64_t neighbour = 0, others = 0;  // what the thread before had run at the last look; what all before had
  Duration nap = kIdle;
  do {
    const size_t ran = context_.poll();
    done_[number].fetch_add(ran, std::memory_order_relaxed);
    const uint64_t before = done_[number - 1].load(std::memory_order_relaxed);
    const bool works = before - std::exchange(neighbour, before) >= kWork;
    const uint64_t all_before = RanBefore(number);
    const bool held_up = std::exchange(others, all_before) == all_before;
    if (ran > 0 && held_up) StandIn(number);
    nap = ran > 0 ? kHelping : std::min(2 * nap, works ? kWatching : kIdle);
  } while (Nap(nap));
}

// There was work, and no thread before did anything: something holds them up. Waits for events in their place
// until one of them goes on, or for as long as some come. It asks all of them: the thread next to this one
// may do nothing because it naps, and two threads that wait for events wake each other for every one.
void Runtime::StandIn(size_t number) {
  const uint64_t before = RanBefore(number);
  for (Duration empty{0}; empty < kForNothing && !context_.stopped(); empty += kStandingIn) {
    if (RanBefore(number) != before) return;
    if (context_.run_one_for(kStandingIn) == 0) continue;
    done_[number].fetch_add(1, std::memory_order_relaxed);
    empty = -kStandingIn;
  }
}

uint64_t Runtime::RanBefore(size_t number) const {
  uint64_t sum = 0;
  for (size_t i = 0; i < number; ++i) sum += done_[i].load(std::memory_order_relaxed);
  return sum;
}

// False: the end.
bool Runtime::Nap(Duration duration) {
  std::unique_lock lock(mutex_);
  return !stop_.wait_for(lock, duration, [this] { return stopping_; });
}

}  // namespace nacre
