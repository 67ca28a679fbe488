#include "client/connect_pauses.h"

#include <gtest/gtest.h>

namespace nacre::client {
namespace {

using std::chrono::seconds;

TEST(ConnectPauses, PatienceGrowsWithEachRound) {
  ConnectPauses pauses(RetryPolicy{}, 3);
  for (const seconds expected : {seconds(1), seconds(2), seconds(4), seconds(5), seconds(5)}) {
    for (int server = 0; server < 3; ++server) {
      EXPECT_EQ(pauses.patience(seconds(5)), expected);
      pauses.Failed();
    }
  }
}

TEST(ConnectPauses, EachServerIsAskedBeforeThePausesGrow) {
  ConnectPauses pauses(RetryPolicy{}, 2);
  const Duration first = pauses.pause();
  pauses.Failed();
  EXPECT_LE(pauses.Next(), ConnectPauses::kToNextServer);
  EXPECT_EQ(pauses.pause(), first);
  pauses.Failed();
  EXPECT_EQ(pauses.Next(), first);
  EXPECT_GT(pauses.pause(), first);
}

}  // namespace
}  // namespace nacre::client
