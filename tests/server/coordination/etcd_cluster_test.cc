#include "tests/server/coordination/etcd_cluster.h"

#include <gtest/gtest.h>

namespace nacre::coordination {
namespace {

TEST(FreePort, IsNoneThatTheKernelGivesToConnections) {
  if (FirstPortOfConnections() <= 10'000) GTEST_SKIP() << "it gives almost all to them";
  for (int i = 0; i < 100; ++i) EXPECT_LT(FreePort(), FirstPortOfConnections());
}

}  // namespace
}  // namespace nacre::coordination
