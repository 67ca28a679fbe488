#include "client/gate.h"

#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <cerrno>
#include <optional>

#include "common/cancellation.h"

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
