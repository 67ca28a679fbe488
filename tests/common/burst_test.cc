#include "common/burst.h"

#include <gtest/gtest.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <latch>
#include <memory>
#include <string>
#include <vector>

#include "common/runtime.h"
#include "common/task.h"
#include "common/turn.h"
#include "tests/common/waiting_chains.h"

namespace nacre {
namespace {

class BurstTest : public WaitingChains {
 protected:
  const Executor executor_ = context_.get_executor();
};

TEST_F(BurstTest, ChainsGoToTheirExecutorAtItsEndInOrder) {
  Wait(context_, one_, '1');
  Wait(context_, two_, '2');
  {
    const Burst burst(executor_);
    two_.Set({});
    one_.Set({});
    Spawn(executor_, [](std::string& happened) -> Task<void> {
      happened += 'n';
      co_return;
    }(happened_));
    EXPECT_EQ(context_.poll(), 0u) << "they gather";
  }
  EXPECT_EQ(happened_, "") << "none is resumed by the thread that has set it";
  context_.restart();
  context_.run();
  EXPECT_EQ(happened_, "21n");
}

TEST_F(BurstTest, OtherContextsAreLeftAlone) {
  Wait(other_, one_, '1');
  const Burst burst(executor_);
  one_.Set({});
  other_.poll();
  EXPECT_EQ(happened_, "1");
}

TEST_F(BurstTest, ATurnTakesItsOwnFirst) {
  Wait(context_, one_, '1');
  Wait(context_, two_, '2');
  {
    const Turn turn(executor_, 1);
    const Burst burst(executor_);
    one_.Set({});
    two_.Set({});
  }
  EXPECT_EQ(happened_, "1");
  context_.restart();
  context_.run();
  EXPECT_EQ(happened_, "12");
}

TEST_F(BurstTest, OneWithinAnotherEndsByItself) {
  Wait(context_, one_, '1');
  Wait(context_, two_, '2');
  const Burst outer(executor_);
  one_.Set({});
  {
    const Burst inner(executor_);
    two_.Set({});
  }
  context_.poll();
  EXPECT_EQ(happened_, "2");
}

TEST_F(BurstTest, WhatIsNeverResumedIsDestroyed) {
  auto alive = std::make_shared<int>();
  {
    asio::io_context context;
    const Executor executor = context.get_executor();
    const Burst burst(executor);
    for (int i = 0; i < 3; ++i) Spawn(executor, [](std::shared_ptr<int>) -> Task<void> { co_return; }(alive));
  }
  EXPECT_EQ(alive.use_count(), 1);
}

// Each of two chains waits for the other's thread.
TEST(Burst, SeveralThreadsShareIt) {
  Runtime runtime(2);
  std::latch both(2), ended(2);
  {
    const Executor executor = runtime.executor();
    const Burst burst(executor);
    for (int i = 0; i < 2; ++i) {
      Spawn(
          executor,
          [](std::latch& both) -> Task<void> {
            both.arrive_and_wait();
            co_return;
          }(both),
          [&] { ended.count_down(); });
    }
  }
  ended.wait();
}

TEST(Burst, EveryChainIsResumedOnce) {
  constexpr int kChains = 1000;
  Runtime runtime(4);
  const Executor executor = runtime.executor();
  for (int round = 0; round < 20; ++round) {
    std::vector<std::atomic<int>> ran(kChains);
    std::latch ended(kChains);
    {
      const Burst burst(executor);
      for (int i = 0; i < kChains; ++i) {
        Spawn(
            executor,
            [](std::atomic<int>& ran) -> Task<void> {
              ++ran;
              co_return;
            }(ran[static_cast<size_t>(i)]),
            [&] { ended.count_down(); });
      }
    }
    ended.wait();
    for (const auto& one : ran) ASSERT_EQ(one, 1);
  }
}

}  // namespace
}  // namespace nacre
