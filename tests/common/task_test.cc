#include "common/task.h"

#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>

#include "common/clock.h"

namespace nacre {
namespace {

TEST(Task, OneShotBeforeAndAfterTheWait) {
  asio::io_context context;
  OneShot<int> early, late;
  int sum = 0;
  early.Set(1);
  Spawn(context.get_executor(), [](auto& early, auto& late, int& sum) -> Task<void> {
    sum += co_await early.Wait();
    sum += co_await late.Wait();
  }(early, late, sum));
  context.poll();
  EXPECT_EQ(sum, 1);
  EXPECT_TRUE(late.Set(2));
  EXPECT_FALSE(late.Set(5));
  context.restart();
  context.poll();
  EXPECT_EQ(sum, 3);
}

// GCC 12 destroyed the closure inside OneShot::Wait twice, and so freed the value under the waiter.
TEST(Task, OneShotKeepsItsValueAliveOnce) {
  auto value = std::make_shared<int>(7);
  for (bool before : {true, false}) {
    asio::io_context context;
    OneShot<std::shared_ptr<int>> shot;
    if (before) shot.Set(value);
    Spawn(context.get_executor(), [](auto shot) -> Task<void> {
      std::shared_ptr<int> got = co_await shot.Wait();
      EXPECT_EQ(*got, 7);
    }(shot));
    context.poll();
    if (!before) shot.Set(value);
    context.restart();
    context.poll();
    OneShot<std::shared_ptr<int>> copy = shot;
    EXPECT_TRUE(copy.IsSet());
  }
  EXPECT_EQ(value.use_count(), 1);
}

TEST(Task, MutexIsFirstComeFirstServed) {
  asio::io_context context;
  AsyncMutex mutex;
  OneShot<Unit> go;
  std::vector<int> order;
  auto take = [&](int i) -> Task<void> {
    auto guard = co_await mutex.Lock();
    if (i == 0) co_await go.Wait();
    order.push_back(i);
  };
  for (int i = 0; i < 5; ++i) Spawn(context.get_executor(), take(i));
  context.poll();
  EXPECT_TRUE(order.empty());
  go.Set({});
  context.restart();
  context.poll();
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4}));
}

TEST(Task, WhenAllKeepsTheOrder) {
  asio::io_context context;
  std::vector<int> results;
  Spawn(context.get_executor(), [](std::vector<int>& results) -> Task<void> {
    std::vector<Task<int>> tasks;
    for (int i = 0; i < 4; ++i) {
      tasks.push_back([](int i) -> Task<int> {
        co_await RealClock().Sleep((4 - i) * 1ms);
        co_return i;
      }(i));
    }
    results = co_await WhenAll(std::move(tasks));
  }(results));
  context.run();
  EXPECT_EQ(results, (std::vector<int>{0, 1, 2, 3}));
}

TEST(Task, ACancelledTimerDoesNotRun) {
  asio::io_context context;
  bool ran = false;
  auto timer = RealClock().After(context.get_executor(), 1ms, [&] { ran = true; });
  timer.reset();
  context.run();
  EXPECT_FALSE(ran);
}

}  // namespace
}  // namespace nacre
