#include "client/gate.h"

#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>

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

}  // namespace
}  // namespace nacre::client
