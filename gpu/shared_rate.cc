#include "gpu/shared_rate.h"

namespace nacre::gpu {
namespace {

constexpr uint64_t kTellingBytes = 1 << 20;  // less says more of latency than of the rate
// As much is learned from without waiting for a pause: what is then half done at its ends does not count.
constexpr uint64_t kPlenty = 64 << 20;
constexpr EngineClock::duration kLatency = std::chrono::microseconds(6);

}  // namespace

EngineTime SharedRate::Begin(uint64_t bytes, EngineTime now) {
  if (under_way_ == 0) {
    since_ = now;
    done_ = 0;
  }
  under_way_ += bytes;
  const double seconds = static_cast<double>(under_way_) / bytes_per_second_;
  return now + kLatency + std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9));
}

void SharedRate::End(uint64_t bytes, EngineTime now) {
  under_way_ -= bytes;
  done_ += bytes;
  if (under_way_ == 0 || done_ >= kPlenty) Learn(now);
}

// A late look makes work seem slow, and little makes it seem fast: up at once, down slowly.
void SharedRate::Learn(EngineTime now) {
  const double seconds = std::chrono::duration<double>(now - since_).count();
  if (done_ >= kTellingBytes && seconds > 0) {
    const double rate = static_cast<double>(done_) / seconds;
    bytes_per_second_ = rate > bytes_per_second_ ? rate : bytes_per_second_ * 0.95 + rate * 0.05;
  }
  since_ = now;
  done_ = 0;
}

}  // namespace nacre::gpu
