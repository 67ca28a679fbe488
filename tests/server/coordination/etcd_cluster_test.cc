#include "tests/server/coordination/etcd_cluster.h"

#include <gtest/gtest.h>

#include <set>

namespace nacre::coordination {
namespace {

TEST(FreePort, IsNoneThatTheKernelGivesToConnections) {
  if (FirstPortOfConnections() <= 10'000) GTEST_SKIP() << "it gives almost all to them";
  for (int i = 0; i < 100; ++i) EXPECT_LT(FreePort(), FirstPortOfConnections());
}

// A member listens some time after its port was found: nothing of it is to be seen in between.
TEST(FreePort, GivesNoneTwice) {
  std::set<int> given;
  for (int i = 0; i < 2'000; ++i) EXPECT_TRUE(given.insert(FreePort()).second);
}

}  // namespace
}  // namespace nacre::coordination
