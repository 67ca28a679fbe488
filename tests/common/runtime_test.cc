#include "common/runtime.h"

#include <gtest/gtest.h>

#include <boost/asio/post.hpp>
#include <latch>
#include <set>

namespace nacre {
namespace {

TEST(Runtime, RunsATaskToItsEnd) {
  Runtime runtime(3);
  auto task = [](Executor executor) -> Task<int> {
    OneShot<int> value;
    Spawn(executor, [](OneShot<int> value) -> Task<void> {
      value.Set(42);
      co_return;
    }(value));
    co_return co_await value.Wait();
  };
  EXPECT_EQ(runtime.Run(task(runtime.executor())), 42);
}

// A task that does not come to its end keeps nobody waiting, also when several do not.
TEST(Runtime, AllThreadsHelp) {
  constexpr int kThreads = 4;
  Runtime runtime(kThreads);
  std::latch together(kThreads);
  std::vector<std::promise<std::thread::id>> ends(kThreads);
  for (auto& end : ends) {
    asio::post(runtime.executor(), [&] {
      together.arrive_and_wait();  // ends only if each is on a thread of its own
      end.set_value(std::this_thread::get_id());
    });
  }
  std::set<std::thread::id> ids;
  for (auto& end : ends) ids.insert(end.get_future().get());
  EXPECT_EQ(ids.size(), static_cast<size_t>(kThreads));
}

// Events go on being served while a task holds up the thread that waits for them.
TEST(Runtime, SomebodyStandsInForAThreadThatIsHeldUp) {
  Runtime runtime(2);
  std::promise<void> held, release;
  asio::post(runtime.executor(), [&] {
    held.set_value();
    release.get_future().wait();
  });
  held.get_future().wait();
  auto tick = [](Clock* clock) -> Task<int> {
    for (int i = 0; i < 20; ++i) co_await clock->Sleep(std::chrono::milliseconds(2));
    co_return 1;
  };
  EXPECT_EQ(runtime.Run(tick(&RealClock())), 1);
  release.set_value();
}

TEST(Runtime, StopsWhileOthersNap) {
  Runtime runtime(4);
  runtime.Stop();
}

}  // namespace
}  // namespace nacre
