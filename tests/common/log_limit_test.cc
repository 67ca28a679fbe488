#include "common/log_limit.h"

#include <gtest/gtest.h>

namespace nacre {
namespace {

TEST(LogLimit, WritesSoManyInAnIntervalAndCountsTheRest) {
  LogLimit limit(2, 10s);
  EXPECT_EQ(limit.Admit(100s), "");
  EXPECT_EQ(limit.Admit(101s), "");
  for (int i = 0; i < 5; ++i) EXPECT_EQ(limit.Admit(102s), std::nullopt);
  EXPECT_EQ(limit.Admit(110s), " (and 5 more like it before)");
  EXPECT_EQ(limit.Admit(110s), "");
  EXPECT_EQ(limit.Admit(119s), std::nullopt);
  EXPECT_EQ(limit.Admit(200s), " (and 1 more like it before)");
}

}  // namespace
}  // namespace nacre
