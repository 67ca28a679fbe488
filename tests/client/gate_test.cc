#include "client/gate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <cerrno>
#include <optional>
#include <thread>
#include <vector>

#include "common/cancellation.h"
#include "tests/sim/world.h"

namespace nacre::client {
namespace {

TEST(Gate, CloserWaitsForThoseInsideAndKeepsOthersOut) {
  asio::io_context context;
  Gate gate;
  Gate::Pass inside = gate.TryEnter();
  ASSERT_TRUE(inside);
  bool closed = false, entered = false;
  auto close = [](Gate* door, bool* done) -> Task<void> {
    co_await door->Close();
    *done = true;
  };
  auto enter = [](Gate* door, bool* done) -> Task<void> {
    Gate::Pass pass = co_await door->Enter();
    *done = true;
  };
  Spawn(context.get_executor(), close(&gate, &closed));
  context.poll();
  EXPECT_FALSE(closed);
  EXPECT_FALSE(gate.TryEnter());
  Spawn(context.get_executor(), enter(&gate, &entered));
  inside.Leave();
  context.restart();
  context.poll();
  EXPECT_TRUE(closed);
  EXPECT_FALSE(entered);
  gate.Open();
  context.restart();
  context.poll();
  EXPECT_TRUE(entered);
}

// From several threads: nobody is inside while it is closed, and no closer waits for ever.
TEST(Gate, IsEmptyWhileItIsClosed) {
  constexpr int kThreads = 3, kClosings = 200;
  Gate gate;
  std::atomic<int> inside = 0;
  std::atomic<bool> over = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      while (!over) {
        Gate::Pass pass = gate.TryEnter();
        if (!pass) continue;
        ++inside;
        --inside;
      }
    });
  }
  asio::io_context context;
  auto close = [](Gate* door, std::atomic<int>* inside, std::atomic<bool>* over) -> Task<void> {
    for (int i = 0; i < kClosings; ++i) {
      co_await door->Close();
      EXPECT_EQ(*inside, 0);
      EXPECT_FALSE(door->TryEnter());
      door->Open();
      co_await Yield();
    }
    *over = true;
  };
  Spawn(context.get_executor(), close(&gate, &inside, &over));
  context.run();
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(gate.TryEnter());
}

// Somebody inside who does not come out keeps others out for moments only.
TEST(Gate, ClosingBetweenOperationsLetsOthersIn) {
  sim::World world(1);
  sim::Process* process = world.Start(0, "client");
  Gate gate;
  Gate::Pass inside = gate.TryEnter();
  bool closed = false;
  auto close = [](Gate* door, Clock* clock, bool* done) -> Task<void> {
    co_await door->CloseBetween(*clock);
    *done = true;
  };
  Spawn(process->executor(), close(&gate, &world.clock(), &closed));
  int entered = 0;
  Duration longest{0};
  for (int i = 0; i < 20; ++i) {
    const Duration begin = world.clock().Now();
    auto enter = [](Gate* door, int* count) -> Task<void> {
      Gate::Pass pass = co_await door->Enter();
      ++*count;
    };
    Spawn(process->executor(), enter(&gate, &entered));
    world.RunUntil([&] { return entered > i; }, 1min);
    ASSERT_EQ(entered, i + 1);
    longest = std::max(longest, world.clock().Now() - begin);
    world.RunFor(700ms);
  }
  EXPECT_FALSE(closed);
  EXPECT_GT(longest, 0s);
  EXPECT_LE(longest, 4s);
  inside.Leave();
  world.RunFor(5s);
  EXPECT_TRUE(closed);
  EXPECT_FALSE(gate.TryEnter());
  world.KillAll();
}

TEST(Gate, WhoIsCancelledDoesNotWaitForItToOpen) {
  asio::io_context context;
  Gate gate;
  auto close = [](Gate* door) -> Task<void> { co_await door->Close(); };
  Spawn(context.get_executor(), close(&gate));
  context.poll();
  std::optional<bool> entered;
  auto enter = [](Gate* door, std::optional<bool>* result) -> Task<void> {
    Gate::Pass pass = co_await door->EnterUnlessCancelled();
    *result = static_cast<bool>(pass);
  };
  auto cancellation = std::make_shared<Cancellation>();
  Spawn(
      context.get_executor(), enter(&gate, &entered), [] {}, cancellation);
  context.restart();
  context.poll();
  EXPECT_FALSE(entered.has_value());
  cancellation->Cancel(ErrnoError(EINTR, "killed"));
  context.restart();
  context.poll();
  EXPECT_EQ(entered, false);
  gate.Open();
  entered.reset();
  Spawn(context.get_executor(), enter(&gate, &entered));
  context.restart();
  context.poll();
  EXPECT_EQ(entered, true);
}

}  // namespace
}  // namespace nacre::client
