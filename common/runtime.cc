#include "common/runtime.h"

#include <algorithm>

namespace nacre {
namespace {

// Between two looks of a thread that helps: while it finds work; while the thread before it works; and when
// that is idle.
constexpr Duration kHelping = std::chrono::microseconds(100);
constexpr Duration kWatching = std::chrono::milliseconds(1);
constexpr Duration kIdle = std::chrono::milliseconds(50);

}  // namespace

Runtime::Runtime(int threads)
    : context_(threads), work_(context_.get_executor()), done_(static_cast<size_t>(std::max(threads, 1))) {
  threads_.emplace_back([this] { Lead(); });
  for (size_t i = 1; i < done_.size(); ++i) threads_.emplace_back([this, i] { Help(i); });
}

void Runtime::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_all();
  context_.stop();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void Runtime::Lead() {
  while (context_.run_one() > 0) done_[0].fetch_add(1, std::memory_order_relaxed);
}

// While nobody before it works it looks less and less often: an idle process should be idle.
void Runtime::Help(size_t number) {
  uint64_t seen = 0;
  Duration nap = kIdle;
  do {
    const size_t ran = context_.poll();
    done_[number].fetch_add(ran, std::memory_order_relaxed);
    const uint64_t before = done_[number - 1].load(std::memory_order_relaxed);
    const bool works = std::exchange(seen, before) != before;
    if (ran > 0 && !works) StandIn(number);
    nap = ran > 0 ? kHelping : works ? kWatching : std::min(2 * nap, kIdle);
  } while (Nap(nap));
}

// There was work, and the thread before did none of it: something holds it up. Waits for events in its place
// until it goes on, or for as long as some come.
void Runtime::StandIn(size_t number) {
  const uint64_t before = done_[number - 1].load(std::memory_order_relaxed);
  for (Duration empty{0}; empty < kIdle && !context_.stopped(); empty += kWatching) {
    if (done_[number - 1].load(std::memory_order_relaxed) != before) return;
    if (context_.run_one_for(kWatching) == 0) continue;
    done_[number].fetch_add(1, std::memory_order_relaxed);
    empty = -kWatching;
  }
}

// False: the end.
bool Runtime::Nap(Duration duration) {
  std::unique_lock lock(mutex_);
  return !stop_.wait_for(lock, duration, [this] { return stopping_; });
}

}  // namespace nacre
