#include "client/range_lock.h"

#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>

#include "client/gate.h"

namespace nacre::client {
namespace {

TEST(RangeLock, SharedTogetherExclusiveAlone) {
  RangeLock lock;
  RangeLock::Guard reader = lock.TryLock(0, 10, false);
  ASSERT_TRUE(reader);
  EXPECT_TRUE(lock.TryLock(5, 15, false));
  EXPECT_FALSE(lock.TryLock(5, 15, true));
  EXPECT_TRUE(lock.TryLock(10, 15, true));
  reader.Release();
  EXPECT_TRUE(lock.TryLock(5, 15, true));
}

TEST(RangeLock, FirstComeFirstServed) {
  asio::io_context context;
  RangeLock lock;
  RangeLock::Guard first = lock.TryLock(0, 10, false);
  std::vector<int> order;
  auto take = [](RangeLock* range, bool exclusive, int id, std::vector<int>* out) -> Task<void> {
    RangeLock::Guard guard = co_await range->Lock(0, 10, exclusive);
    out->push_back(id);
  };
  Spawn(context.get_executor(), take(&lock, true, 1, &order));
  Spawn(context.get_executor(), take(&lock, false, 2, &order));  // must not overtake the writer
  context.poll();
  EXPECT_TRUE(order.empty());
  first.Release();
  context.restart();
  context.poll();
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
}

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

}  // namespace
}  // namespace nacre::client
