#include "daemon/cli/osts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nacre::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

void AddMember(proto::OstState* ost, const std::string& address, bool up, bool in_sync, bool joining) {
  proto::MemberState* member = ost->add_members();
  member->mutable_info()->set_copies(ost->info().copies());
  member->mutable_info()->set_directory("/srv" + std::to_string(ost->members_size()));
  member->set_address(address);
  member->set_up(up);
  member->set_in_sync(in_sync);
  member->set_joining(joining);
  member->set_seconds_since_heartbeat(up ? 1 : 300);
}

// An OST of one member, as all were before there were others.
proto::OstState Alone() {
  proto::OstState ost;
  ost.mutable_info()->set_index(3);
  ost.mutable_info()->set_total_bytes(10ull << 30);
  ost.mutable_info()->set_available_bytes(4ull << 30);
  ost.mutable_info()->set_objects(12);
  ost.mutable_info()->set_directory("/srv1");
  ost.set_address("a:1");
  ost.set_up(true);
  return ost;
}

proto::OstState Chain(uint32_t copies) {
  proto::OstState ost = Alone();
  ost.mutable_info()->set_copies(copies);
  ost.set_chain_epoch(7);
  AddMember(&ost, "a:1", true, true, false);
  return ost;
}

TEST(Osts, OneOfOneMemberIsShownAsEver) {
  EXPECT_THAT(
      OstLines(Alone()),
      ElementsAre("OST 3   up              4.00 GiB of  10.0 GiB free        12 objects  a:1  /srv1"));
  EXPECT_EQ(ObjectsAndMembers(Alone()), "12 objects");
  proto::ClusterStatus status;
  *status.mutable_map()->add_osts() = Alone();
  EXPECT_FALSE(StatusToJson(status)["osts"][0].contains("chain"));
  EXPECT_FALSE(SpaceToJson(status)["osts"][0].contains("copies"));
}

TEST(Osts, ADrainIsShown) {
  proto::OstState ost = Alone();
  ost.mutable_drain()->set_moved_files(2);
  ost.mutable_drain()->set_moved_bytes(3 << 20);
  EXPECT_EQ(DrainText(ost), "2 files (3.00 MiB) moved, 12 objects are left");
  EXPECT_EQ(ObjectsAndMembers(ost), "12 objects, draining");
  EXPECT_THAT(OstProblems(ost), IsEmpty());
  ost.mutable_drain()->set_stuck_files(1);
  ost.mutable_drain()->set_problem("no space");
  EXPECT_THAT(DrainText(ost), HasSubstr("1 files could not be moved yet"));
  EXPECT_THAT(OstProblems(ost), ElementsAre("draining: no space"));
  ost.clear_drain();
  ost.mutable_drain()->set_empty(true);
  EXPECT_THAT(DrainText(ost), HasSubstr("nacre ost remove"));
  EXPECT_EQ(ObjectsAndMembers(ost), "12 objects, drained");
  proto::ClusterStatus status;
  *status.mutable_map()->add_osts() = ost;
  status.mutable_map()->add_removed()->set_index(7);
  EXPECT_TRUE(StatusToJson(status)["osts"][0]["drain"]["empty"].get<bool>());
  EXPECT_EQ(StatusToJson(status)["removed_osts"][0]["index"], 7);
  EXPECT_TRUE(SpaceToJson(status)["osts"][0]["draining"].get<bool>());
}

TEST(Osts, EachMemberIsShownWithItsState) {
  proto::OstState ost = Chain(3);
  AddMember(&ost, "b:1", true, true, false);
  AddMember(&ost, "c:1", true, true, false);
  EXPECT_THAT(OstProblems(ost), IsEmpty());
  EXPECT_THAT(OstLines(ost),
              ElementsAre(HasSubstr("OST 3   up"), "  3 of 3 members in sync, epoch 7:",
                          "    head     up             a:1  /srv1", "    in sync  up             b:1  /srv2",
                          "    in sync  up             c:1  /srv3"));
  EXPECT_EQ(ObjectsAndMembers(ost), "12 objects, 3 of 3 members in sync");
}

TEST(Osts, MembersThatAreMissingAreAProblem) {
  proto::OstState ost = Chain(3);
  AddMember(&ost, "b:1", true, false, true);
  AddMember(&ost, "c:1", false, false, false);
  EXPECT_THAT(OstProblems(ost), ElementsAre("1 of 3 members in sync: b:1 is joining, c:1 is away"));
  EXPECT_THAT(OstLines(ost),
              ElementsAre(HasSubstr("OST 3   up"),
                          "  1 of 3 members in sync, epoch 7:", "    head     up             a:1  /srv1",
                          "    joining  up             b:1  /srv2", "    away     DOWN for 5 min c:1  /srv3",
                          "  problem: 1 of 3 members in sync: b:1 is joining, c:1 is away"));
  ost.mutable_info()->add_problems("a bad block");
  EXPECT_THAT(OstProblems(ost), ElementsAre("a bad block", HasSubstr("1 of 3")));
}

// One server alone: it serves, and says what it lacks.
TEST(Osts, ServersThatWereNeverThereAreAProblem) {
  EXPECT_THAT(OstProblems(Chain(2)),
              ElementsAre("1 of 2 members in sync: 1 more server must have this index in [[oss.ost]]"));
  EXPECT_THAT(OstProblems(Chain(3)), ElementsAre(HasSubstr("2 more servers must have this index")));
  // The largest number that a member wants counts: a configuration may be changed on one server after the
  // other.
  proto::OstState ost = Chain(1);
  ost.mutable_members(0)->mutable_info()->set_copies(2);
  EXPECT_EQ(WantedMembers(ost), 2u);
}

TEST(Osts, JsonHasTheSame) {
  proto::OstState ost = Chain(2);
  AddMember(&ost, "b:1", false, false, false);
  proto::ClusterStatus status;
  *status.mutable_map()->add_osts() = ost;
  const Json shown = StatusToJson(status)["osts"][0];
  EXPECT_EQ(shown["chain"]["ost"], 3);
  EXPECT_EQ(shown["chain"]["epoch"], 7);
  EXPECT_EQ(shown["chain"]["copies"], 2);
  ASSERT_EQ(shown["chain"]["members"].size(), 2u);
  EXPECT_EQ(shown["chain"]["members"][0]["state"], "head");
  EXPECT_EQ(shown["chain"]["members"][1]["state"], "away");
  EXPECT_EQ(shown["chain"]["members"][1]["address"], "b:1");
  EXPECT_EQ(shown["chain"]["members"][1]["up"], false);
  EXPECT_THAT(shown["problems"][0].get<std::string>(), HasSubstr("b:1 is away"));
  // The OST has its space once, however many members there are.
  const Json space = SpaceToJson(status);
  ASSERT_EQ(space["osts"].size(), 1u);
  EXPECT_EQ(space["osts"][0]["copies"], 2);
  EXPECT_EQ(space["osts"][0]["in_sync"], 1);
  EXPECT_EQ(space["total_bytes"], 10ull << 30);
}

}  // namespace
}  // namespace nacre::cli
