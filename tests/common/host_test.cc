#include "common/host.h"

#include <gtest/gtest.h>

namespace nacre {
namespace {

TEST(HostTest, TheBootHasOneId) {
  StatusOr<std::string> id = BootId();
  ASSERT_TRUE(id.ok()) << id.status();
  EXPECT_GE(id->size(), 32u);
  EXPECT_EQ(id->find_first_of(" \n"), std::string::npos);
  EXPECT_EQ(*id, *BootId());
}

}  // namespace
}  // namespace nacre
