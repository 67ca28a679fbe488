#include "common/coroutine.h"

#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include "common/task.h"

namespace nacre {
namespace {

using namespace std::chrono_literals;

Task<int> Twice(int value) { co_return 2 * value; }

TEST(Coroutine, BeginsAtOnceOnAThreadOfItsExecutorElseLater) {
  asio::io_context context;
  std::string order;
  auto task = [](std::string& order) -> Task<int> {
    order += 'a';
    co_return co_await Twice(4);
  };
  auto done = [&order](int result) { order += std::to_string(result); };
  Spawn(context.get_executor(), task(order), done);
  EXPECT_EQ(order, "");
  asio::post(context, [&] {
    order += '<';
    Spawn(context.get_executor(), task(order), done);
    order += '>';
  });
  context.run();
  EXPECT_EQ(order, "a8<a8>");
}

TEST(Coroutine, ItsContextRunsUntilItHasEnded) {
  asio::io_context context;
  OneShot<int> value;
  int got = 0;
  Spawn(
      context.get_executor(), [](OneShot<int> value) -> Task<int> { co_return co_await value.Wait(); }(value),
      [&got](int result) { got = result; });
  std::thread other([value] {
    std::this_thread::sleep_for(20ms);
    value.Set(3);
  });
  context.run();
  EXPECT_EQ(got, 3);
  other.join();
}

TEST(Coroutine, AMillionOneAfterTheOtherNeedNoStack) {
  asio::io_context context;
  int64_t sum = 0;
  Spawn(
      context.get_executor(),
      []() -> Task<int64_t> {
        int64_t sum = 0;
        for (int i = 0; i < 1'000'000; ++i) sum += co_await Twice(1);
        co_return sum;
      }(),
      [&sum](int64_t result) { sum = result; });
  context.run();
  EXPECT_EQ(sum, 2'000'000);
}

Task<void> Inner(std::shared_ptr<int>) { co_await Yield(); }

Task<void> Outer(std::shared_ptr<int> value) {
  const std::shared_ptr<int> own = value;
  co_await Inner(value);
}

TEST(Coroutine, OneThatIsNeverResumedIsDestroyedWhereItWaits) {
  auto value = std::make_shared<int>(1);
  bool ended = false;
  {
    asio::io_context context;
    Spawn(context.get_executor(), Outer(value), [&ended] { ended = true; });
    context.run_one();
    EXPECT_GT(value.use_count(), 1);
  }
  EXPECT_EQ(value.use_count(), 1);
  EXPECT_FALSE(ended);
}

TEST(Coroutine, IsGoneWhenItsResultIsTold) {
  asio::io_context context;
  auto value = std::make_shared<int>(1);
  long users = 0;
  Spawn(context.get_executor(), Outer(value), [&] { users = value.use_count(); });
  context.run();
  EXPECT_EQ(users, 1);
}

TEST(Coroutine, DiesOfAnException) {
  auto run = [] {
    asio::io_context context;
    Spawn(context.get_executor(), []() -> Task<void> {
      throw std::runtime_error("thrown in a test");
      co_return;
    }());
    context.run();
  };
  EXPECT_DEATH(run(), "a task ended by an exception: thrown in a test");
}

TEST(Coroutine, YieldsToWhatIsQueued) {
  asio::io_context context;
  std::string order;
  Spawn(context.get_executor(), [](asio::io_context& context, std::string& order) -> Task<void> {
    asio::post(context, [&order] { order += 'b'; });
    order += 'a';
    co_await Yield();
    order += 'c';
  }(context, order));
  context.run();
  EXPECT_EQ(order, "abc");
}

Task<boost::system::error_code> WaitFor(asio::steady_timer& timer) {
  auto wait = [&timer](auto done) { timer.async_wait(std::move(done)); };
  auto [error] = co_await Operation<boost::system::error_code>(wait);
  co_return error;
}

TEST(Coroutine, GetsTheResultsOfAnOperation) {
  asio::io_context context;
  asio::steady_timer soon(context, 1ms), never(context, 24h);
  boost::system::error_code first = asio::error::fault, second;
  Spawn(context.get_executor(), WaitFor(soon), [&](boost::system::error_code error) {
    first = error;
    never.cancel();
  });
  Spawn(context.get_executor(), WaitFor(never), [&](boost::system::error_code error) { second = error; });
  context.run();
  EXPECT_FALSE(first);
  EXPECT_EQ(second, asio::error::operation_aborted);
}

}  // namespace
}  // namespace nacre
