// The stored record of an OST, in both of its forms (proto/FORMAT.md).
#include "server/cluster/ost_record.h"

#include <gtest/gtest.h>

#include "common/bytes.h"

namespace nacre::cluster {
namespace {

using State = OstMember::State;

OstRecord OfThree() {
  OstRecord record;
  record.epoch = 7;
  record.copies = 3;
  record.members = {{"u1", "host:1", 10, 4, State::kInSync},
                    {"u2", "host:2", 20, 5, State::kJoining},
                    {"u3", "host:3", 30, 6, State::kAway}};
  return record;
}

bool IsDamaged(const OstRecord& record) { return absl::IsDataLoss(ParseOst(EncodeOst(record)).status()); }

TEST(OstRecord, BothFormsAreRead) {
  EXPECT_EQ(*ParseOst(EncodeOst(OfThree())), OfThree());
  std::string first;
  PutText<uint32_t>(&first, "uuid");
  PutText<uint32_t>(&first, "host:1");
  PutLittle<uint64_t>(&first, 1 << 20);
  auto old = ParseOst(first);
  ASSERT_TRUE(old.ok()) << old.status();
  EXPECT_EQ(old->copies, 1u);
  EXPECT_EQ(old->epoch, 0u);
  EXPECT_EQ(old->head().address, "host:1");
  EXPECT_TRUE(old->head().in_sync());
  EXPECT_EQ(EncodeOst(*old), first);
}

TEST(OstRecord, SaysWhatItIsUsedFor) {
  for (const OstUse use : {OstUse::kDraining, OstUse::kRemoved, OstUse::kLost}) {
    OstRecord record = OfThree();
    record.use = use;
    EXPECT_EQ(*ParseOst(EncodeOst(record)), record);
    OstRecord alone;
    alone.members = {{"uuid", "host:1", 10}};
    alone.use = use;
    EXPECT_EQ(*ParseOst(EncodeOst(alone)), alone);
    const std::string whole = EncodeOst(alone);
    for (size_t length = 0; length < whole.size(); ++length)
      EXPECT_TRUE(absl::IsDataLoss(ParseOst(whole.substr(0, length)).status())) << length;
  }
  OstRecord record = OfThree();
  record.use = static_cast<OstUse>(4);
  EXPECT_TRUE(IsDamaged(record));
}

TEST(OstRecord, OneOfALaterVersionIsRefusedAsThat) {
  OstRecord record = OfThree();
  record.use = OstUse::kDraining;
  std::string later = EncodeOst(record);
  ASSERT_EQ(later[4], 3);
  later[4] = 4;
  const Status refused = ParseOst(later).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_NE(refused.message().find("version 4; this program knows version 3"), std::string::npos) << refused;
}

TEST(OstRecord, DamageIsRefused) {
  const std::string whole = EncodeOst(OfThree());
  for (size_t length = 0; length < whole.size(); ++length)
    EXPECT_TRUE(absl::IsDataLoss(ParseOst(whole.substr(0, length)).status())) << length;
  EXPECT_TRUE(absl::IsDataLoss(ParseOst(whole + "x").status()));
  OstRecord record = OfThree();
  std::swap(record.members[0], record.members[1]);
  EXPECT_TRUE(IsDamaged(record));
  record = OfThree();
  record.members[2].uuid = "u1";
  EXPECT_TRUE(IsDamaged(record));
  record = OfThree();
  record.copies = 2;
  EXPECT_TRUE(IsDamaged(record));
  record = OfThree();
  record.epoch = 0;
  EXPECT_TRUE(IsDamaged(record));
  record = OfThree();
  record.members.clear();
  EXPECT_TRUE(IsDamaged(record));
}

}  // namespace
}  // namespace nacre::cluster
