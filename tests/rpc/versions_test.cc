#include "rpc/versions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nacre {
namespace {

using testing::HasSubstr;

std::string Refusal(VersionRange theirs, VersionRange ours) {
  auto common = CommonVersion(theirs, ours, "OSS store1:7720", "the MDS");
  EXPECT_EQ(ToErrno(common.status()), EPROTO);
  return std::string(common.status().message());
}

TEST(Versions, TheNewestThatBothSpeak) {
  EXPECT_EQ(*CommonVersion({3, 3}, {3, 3}, "", ""), 3u);
  EXPECT_EQ(*CommonVersion({1, 4}, {2, 3}, "", ""), 3u);
  EXPECT_EQ(*CommonVersion({2, 3}, {1, 4}, "", ""), 3u);
  EXPECT_EQ(*CommonVersion({1, 2}, {2, 3}, "", ""), 2u);
}

TEST(Versions, WhoHasNoneInCommonIsToldSo) {
  EXPECT_THAT(Refusal({2, 2}, {1, 1}),
              HasSubstr("OSS store1:7720 speaks version 2 of the protocol, the MDS version 1"));
  EXPECT_THAT(Refusal({1, 1}, {2, 3}), HasSubstr("version 1 of the protocol, the MDS versions 2 to 3"));
}

TEST(Versions, WhatAMessageDoesNotSay) {
  EXPECT_EQ(RangeOf(0, 0, 1).ToString(), "version 1");
  EXPECT_EQ(RangeOf(3, 0, 1).ToString(), "version 3");
  EXPECT_EQ(RangeOf(3, 2, 1).ToString(), "versions 2 to 3");
  // Nonsense has nothing in common with anybody.
  EXPECT_THAT(Refusal(RangeOf(1, 5, 1), {1, 9}), HasSubstr("versions 5 to 1"));
}

}  // namespace
}  // namespace nacre
