#include "transport/verbs/receive_ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nacre::verbs {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class ReceiveLedgerTest : public ::testing::Test {
 protected:
  // It comes back and is posted again.
  void Receive(uint32_t buffer) {
    ASSERT_TRUE(ledger_.CameBack(buffer));
    ledger_.Posted(buffer);
  }

  ReceiveLedger ledger_;
};

TEST_F(ReceiveLedgerTest, NothingIsMissingWhileQueuePairsLive) {
  for (uint32_t buffer = 0; buffer < 8; ++buffer) ledger_.Posted(buffer);
  ledger_.Joined();
  for (uint32_t buffer : {3u, 0u, 2u, 5u}) Receive(buffer);  // 1 and 4 are in the middle of a message
  for (int i = 0; i < 5; ++i) EXPECT_EQ(ledger_.Look().missing, 0u);
}

TEST_F(ReceiveLedgerTest, WhatAQueuePairTookAlongIsMissingAfterTheSecondLook) {
  for (uint32_t buffer = 0; buffer < 8; ++buffer) ledger_.Posted(buffer);
  const uint64_t leaves = ledger_.Joined(), stays = ledger_.Joined();
  ledger_.Left(leaves);
  Receive(1);  // behind 0, which was lost
  EXPECT_EQ(ledger_.Look().missing, 0u);
  EXPECT_EQ(ledger_.Look().missing, 1u);
  EXPECT_EQ(ledger_.given_up(), 1u);
  for (int i = 0; i < 5; ++i) {
    const ReceiveLedger::Losses losses = ledger_.Look();
    EXPECT_EQ(losses.missing, 0u);
    EXPECT_THAT(losses.given_back, IsEmpty()) << "the one that stays might have it";
  }
  ledger_.Left(stays);
  EXPECT_THAT(ledger_.Look().given_back, IsEmpty()) << "what it received last may not have been polled";
  EXPECT_THAT(ledger_.Look().given_back, ElementsAre(0u));
  EXPECT_EQ(ledger_.given_up(), 0u);
}

TEST_F(ReceiveLedgerTest, WhatComesBackAfterAllIsNotPostedAgain) {
  for (uint32_t buffer = 0; buffer < 8; ++buffer) ledger_.Posted(buffer);
  const uint64_t leaves = ledger_.Joined();
  ledger_.Joined();
  ledger_.Left(leaves);
  Receive(1);
  ledger_.Look();
  ASSERT_EQ(ledger_.Look().missing, 1u);
  EXPECT_FALSE(ledger_.CameBack(0));
  EXPECT_EQ(ledger_.given_up(), 0u);
  ledger_.Posted(0);  // for something else, later
  Receive(0);
}

// Nobody knows whether the first of what is left is in the queue or lost, until another has overtaken it.
TEST_F(ReceiveLedgerTest, ALossIsFoundWhenSomethingHasOvertakenIt) {
  for (uint32_t buffer = 0; buffer < 8; ++buffer) ledger_.Posted(buffer);
  const uint64_t leaves = ledger_.Joined();
  ledger_.Left(leaves);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(ledger_.Look().missing, 0u);
  ledger_.Joined();
  Receive(3);
  EXPECT_EQ(ledger_.Look().missing, 3u);
  EXPECT_EQ(ledger_.Look().missing, 0u);
}

// Receives that were posted after the last queue pair left were not lost with it.
TEST_F(ReceiveLedgerTest, WhatWasPostedLaterIsNotSuspected) {
  for (uint32_t buffer = 0; buffer < 4; ++buffer) ledger_.Posted(buffer);
  const uint64_t leaves = ledger_.Joined();
  ledger_.Joined();
  for (uint32_t buffer = 0; buffer < 4; ++buffer) Receive(buffer);
  ledger_.Left(leaves);
  for (uint32_t buffer = 4; buffer < 8; ++buffer) ledger_.Posted(buffer);
  for (uint32_t buffer = 0; buffer < 4; ++buffer) Receive(buffer);
  Receive(7);  // 4, 5 and 6 are in the middle of messages
  for (int i = 0; i < 5; ++i) EXPECT_EQ(ledger_.Look().missing, 0u);
}

}  // namespace
}  // namespace nacre::verbs
