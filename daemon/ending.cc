#include "daemon/ending.h"

#include <algorithm>
#include <boost/asio/signal_set.hpp>
#include <csignal>
#include <thread>

#include "common/log.h"

namespace nacre {

int WaitForEnd(Runtime& runtime, OneShot<Unit> also) {
  asio::signal_set signals(runtime.executor(), SIGTERM, SIGINT);
  OneShot<int> end;
  signals.async_wait([end](const boost::system::error_code& error, int signal) {
    if (!error) end.Set(signal);
  });
  Spawn(runtime.executor(), [](OneShot<Unit> also, OneShot<int> end) -> Task<void> {
    co_await also.Wait();
    end.Set(0);
  }(also, end));
  int signal = runtime.Run([](OneShot<int> end) -> Task<int> { co_return co_await end.Wait(); }(end));
  if (signal != 0) LogInfo("%s: ending", signal == SIGINT ? "interrupted" : "asked to end");
  return signal;
}

int DefaultThreads() { return static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, 4u)); }

}  // namespace nacre
