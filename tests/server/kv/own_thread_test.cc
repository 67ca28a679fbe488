#include "server/kv/own_thread.h"

#include <gtest/gtest.h>

#include <future>
#include <vector>

#include "common/runtime.h"

namespace nacre {
namespace {

// The call waits for what only the caller's thread can do.
TEST(OwnThread, TheCallersThreadGoesOn) {
  Runtime runtime(1);
  OwnThread own;
  std::promise<void> released;
  std::future_status waited = std::future_status::timeout;
  OneShot<Unit> ended;
  Spawn(runtime.executor(), [](OwnThread& own, auto& released, auto& waited, auto ended) -> Task<void> {
    co_await own.Run([&] { waited = released.get_future().wait_for(std::chrono::seconds(30)); });
    ended.Set({});
  }(own, released, waited, ended));
  runtime.Run([](auto& released, auto ended) -> Task<Unit> {
    released.set_value();
    co_return co_await ended.Wait();
  }(released, ended));
  EXPECT_EQ(waited, std::future_status::ready);
}

TEST(OwnThread, CallsRunOneAtATimeInTheirOrder) {
  Runtime runtime(2);
  OwnThread own;
  std::vector<int> ran;
  runtime.Run([](OwnThread& own, std::vector<int>& ran) -> Task<Unit> {
    auto one = [](OwnThread& own, std::vector<int>& ran, int number) -> Task<Unit> {
      co_await own.Run([&ran, number] { ran.push_back(number); });
      co_return Unit{};
    };
    std::vector<Task<Unit>> calls;
    for (int i = 0; i < 100; ++i) calls.push_back(one(own, ran, i));
    (void)co_await WhenAll(std::move(calls));
    co_return Unit{};
  }(own, ran));
  ASSERT_EQ(ran.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(ran[static_cast<size_t>(i)], i);
}

TEST(OwnThread, TheDestructorReturnsWhenAllHaveRun) {
  Runtime runtime(1);
  bool ran = false;
  {
    OwnThread own;
    std::promise<void> waits;
    Spawn(runtime.executor(), [](OwnThread& own, bool& ran, auto& waits) -> Task<void> {
      co_await own.Run([&] {
        waits.set_value();
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        ran = true;
      });
    }(own, ran, waits));
    waits.get_future().wait();
  }
  EXPECT_TRUE(ran);
}

}  // namespace
}  // namespace nacre
