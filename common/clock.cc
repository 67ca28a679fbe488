#include "common/clock.h"

#include <ctime>

#include <boost/asio/steady_timer.hpp>

namespace nacre {
namespace {

class RealTimer : public TimerHandle {
 public:
  RealTimer(const Executor& executor, Duration delay, absl::AnyInvocable<void()> function)
      : state_(std::make_shared<State>(executor)) {
    state_->function = std::move(function);
    state_->timer.expires_after(delay);
    state_->timer.async_wait([state = state_](const boost::system::error_code&) {
      absl::AnyInvocable<void()> run;
      {
        std::lock_guard lock(state->mutex);
        if (state->cancelled) return;
        run = std::move(state->function);
      }
      if (run) run();
    });
  }

  ~RealTimer() override {
    absl::AnyInvocable<void()> dropped;
    std::lock_guard lock(state_->mutex);
    state_->cancelled = true;
    dropped = std::move(state_->function);
    state_->timer.cancel();
  }

 private:
  struct State {
    explicit State(const Executor& executor) : timer(executor) {}
    std::mutex mutex;
    bool cancelled = false;
    asio::steady_timer timer;
    absl::AnyInvocable<void()> function;
  };
  std::shared_ptr<State> state_;
};

class SteadyClock : public Clock {
 public:
  Duration Now() override { return std::chrono::steady_clock::now().time_since_epoch(); }

  Duration Coarse() override {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return std::chrono::seconds(now.tv_sec) + Duration(now.tv_nsec);
  }

  WallTime Wall() override {
    timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return {now.tv_sec, static_cast<uint32_t>(now.tv_nsec)};
  }

  std::unique_ptr<TimerHandle> After(const Executor& executor, Duration delay,
                                     absl::AnyInvocable<void()> function) override {
    return std::make_unique<RealTimer>(executor, delay, std::move(function));
  }
};

}  // namespace

Task<void> Clock::Sleep(Duration delay) {
  OneShot<Unit> done;
  Executor executor = co_await CurrentExecutor();
  auto timer = After(executor, delay, [done] { done.Set({}); });
  co_await done.Wait();
}

Clock& RealClock() {
  static SteadyClock clock;
  return clock;
}

}  // namespace nacre
