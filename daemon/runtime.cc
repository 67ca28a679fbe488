#include "daemon/runtime.h"

#include <algorithm>
#include <csignal>

#include "common/log.h"

namespace nacre {

Runtime::Runtime(unsigned threads) : work_(context_.get_executor()), signals_(context_, SIGTERM, SIGINT) {
  std::signal(SIGPIPE, SIG_IGN);
  if (threads == 0) threads = std::clamp(std::thread::hardware_concurrency(), 1u, 4u);
  for (unsigned i = 0; i < threads; ++i) threads_.emplace_back([this] { context_.run(); });
}

Runtime::~Runtime() {
  work_.reset();
  context_.stop();
  for (std::thread& thread : threads_) thread.join();
}

int Runtime::WaitForEnd(OneShot<Unit> also) {
  OneShot<int> end;
  signals_.async_wait([this, end](const boost::system::error_code& error, int signal) {
    if (error) return;
    LogInfo("%s: ending", signal == SIGINT ? "interrupted" : "asked to end");
    boost::system::error_code ignored;
    signals_.clear(ignored);  // the next one kills
    end.Set(signal);
  });
  Spawn(executor(), [](OneShot<Unit> also, OneShot<int> end) -> Task<void> {
    co_await also.Wait();
    end.Set(0);
  }(also, end));
  return Run([](OneShot<int> end) -> Task<int> { co_return co_await end.Wait(); }(end));
}

}  // namespace nacre
