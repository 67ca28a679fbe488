#include "common/turn.h"

#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <functional>
#include <string>

#include "common/task.h"
#include "tests/common/waiting_chains.h"

namespace nacre {
namespace {

class TurnTest : public WaitingChains {
 protected:
  // Within a turn of this thread, which is none of the context's.
  void InATurn(int chains, const std::function<void(const Turn&)>& act) {
    const Executor executor = context_.get_executor();
    const Turn turn(executor, chains);
    act(turn);
    happened_ += '|';
  }
};

TEST_F(TurnTest, SoManyChainsGoOnAtItsEndTheOthersOnTheirExecutor) {
  Wait(context_, one_, '1');
  Wait(context_, two_, '2');
  Wait(context_, three_, '3');
  InATurn(2, [&](const Turn& turn) {
    EXPECT_FALSE(turn.has_chains());
    one_.Set({});
    two_.Set({});
    three_.Set({});
    EXPECT_TRUE(turn.has_chains());
  });
  EXPECT_EQ(happened_, "|12");
  context_.restart();
  context_.run();
  EXPECT_EQ(happened_, "|123");
}

TEST_F(TurnTest, AChainMayBegin) {
  InATurn(1, [&](const Turn&) {
    for (char name : {'a', 'b'}) {
      Spawn(context_.get_executor(), [](std::string& happened, char name) -> Task<void> {
        happened += name;
        co_return;
      }(happened_, name));
    }
  });
  EXPECT_EQ(happened_, "|a");
  context_.run();
  EXPECT_EQ(happened_, "|ab");
}

TEST_F(TurnTest, WhatAChainBringsAboutIsOfTheTurn) {
  Wait(context_, one_, '1');
  Wait(context_, two_, '2');
  Spawn(context_.get_executor(), [](OneShot<Unit> first, OneShot<Unit> second) -> Task<void> {
    co_await first.Wait();
    second.Set({});
  }(three_, one_));
  context_.poll();
  InATurn(2, [&](const Turn&) { three_.Set({}); });
  EXPECT_EQ(happened_, "|1");
}

TEST_F(TurnTest, OtherContextsAreLeftAlone) {
  Wait(other_, one_, '1');
  InATurn(4, [&](const Turn& turn) {
    one_.Set({});
    EXPECT_FALSE(turn.has_chains());
    Turn::CallAtEnd(other_.get_executor(), [&] { happened_ += 'x'; });
  });
  EXPECT_EQ(happened_, "|");
  other_.restart();
  other_.run();
  EXPECT_EQ(happened_, "|1x");
}

TEST_F(TurnTest, CallsAreMadeBehindTheChainsAndMayBringMore) {
  Wait(context_, one_, '1');
  Wait(context_, two_, '2');
  InATurn(4, [&](const Turn&) {
    Turn::CallAtEnd(context_.get_executor(), [&] {
      happened_ += 'c';
      two_.Set({});
    });
    one_.Set({});
  });
  EXPECT_EQ(happened_, "|1c2");
}

TEST_F(TurnTest, WithoutOneACallIsPosted) {
  Turn::CallAtEnd(context_.get_executor(), [&] { happened_ += 'c'; });
  EXPECT_EQ(happened_, "");
  context_.run();
  EXPECT_EQ(happened_, "c");
}

// On a thread of the context itself, as in an event loop of the context's.
TEST_F(TurnTest, MayBeWithinAHandler) {
  Wait(context_, one_, '1');
  Wait(context_, two_, '2');
  context_.restart();
  asio::post(context_, [&] {
    InATurn(1, [&](const Turn&) {
      one_.Set({});
      two_.Set({});
    });
    happened_ += ')';
  });
  context_.run();
  EXPECT_EQ(happened_, "|1)2");
}

}  // namespace
}  // namespace nacre
