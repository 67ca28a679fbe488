#include "rpc/read_messages.h"

#include <gtest/gtest.h>

namespace nacre {
namespace {

using Requests = ReadMessages<proto::ReadObjects>;
using Replies = ReadMessages<proto::ReadObjectsReply>;

proto::ReadObjectsReply* ReplyOf(int ranges) {
  auto* reply = new proto::ReadObjectsReply;
  for (int i = 0; i < ranges; ++i) {
    proto::ReadRangeResult* result = reply->add_ranges();
    result->set_length(4096);
    result->add_crc(17);
    result->add_holes()->set_length(5);
    result->mutable_status()->set_message("it was damaged");
    result->mutable_version()->set_changes(3);
  }
  return reply;
}

TEST(ReadMessages, WhatComesBackIsEmptyAndTakesWhatIsNew) {
  proto::ReadObjectsReply* const used = ReplyOf(3);
  Replies::Keep(used);
  std::unique_ptr<proto::ReadObjectsReply> again(Replies::Take(2));
  ASSERT_EQ(again.get(), used);
  EXPECT_EQ(again->ByteSizeLong(), 0u);
  proto::ReadObjectsReply fresh;
  fresh.add_ranges()->set_length(9);
  fresh.add_ranges()->add_crc(23);
  ASSERT_TRUE(again->MergeFromString(fresh.SerializeAsString()));
  EXPECT_EQ(again->SerializeAsString(), fresh.SerializeAsString()) << "nothing of before";
}

TEST(ReadMessages, KeepsFewAndOnlyOfSeveralRanges) {
  for (const int ranges : {0, 1, 65}) {
    Replies::Keep(ReplyOf(ranges));
    const std::unique_ptr<proto::ReadObjectsReply> next(Replies::Take(2));
    EXPECT_EQ(next->SpaceUsedLong(), proto::ReadObjectsReply().SpaceUsedLong()) << ranges << ": a new one";
  }
  for (int i = 0; i < 100; ++i) Replies::Keep(ReplyOf(2));
  int kept = 0;
  while (std::unique_ptr<proto::ReadObjectsReply>(Replies::Take(2))->SpaceUsedLong() >
         proto::ReadObjectsReply().SpaceUsedLong())
    ++kept;
  EXPECT_EQ(kept, 16);
  Requests::Keep(nullptr);
}

TEST(ReadMessages, AReadOfOneRangeLeavesThemToOthers) {
  proto::ReadObjectsReply* const used = ReplyOf(3);
  Replies::Keep(used);
  const std::unique_ptr<proto::ReadObjectsReply> one(Replies::Take(1));
  EXPECT_NE(one.get(), used);
  const std::unique_ptr<proto::ReadObjectsReply> several(Replies::Take(64));
  EXPECT_EQ(several.get(), used);
}

}  // namespace
}  // namespace nacre
