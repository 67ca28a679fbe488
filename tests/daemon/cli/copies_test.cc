#include "daemon/cli/copies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nacre::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

proto::MdtCopyState* AddMember(proto::MdtCopies* copies, const std::string& name, bool in_sync,
                               const std::string& state) {
  proto::MdtCopyState* member = copies->add_members();
  member->set_name(name);
  member->set_address(name + ":7710");
  member->set_in_sync(in_sync);
  member->set_sequence(copies->sequence());
  member->set_milliseconds_since_answer(300);
  member->set_state(state);
  return member;
}

proto::MdtCopies Two() {
  proto::MdtCopies copies;
  copies.set_epoch(3);
  copies.set_primary("a");
  copies.set_sequence(815);
  AddMember(&copies, "a", true, "primary")->set_milliseconds_since_answer(0);
  AddMember(&copies, "b", true, "in sync");
  return copies;
}

TEST(Copies, AreShownWithTheirStates) {
  EXPECT_THAT(
      CopiesLines(Two()),
      ElementsAre("MDT     2 of 2 copies in sync, a is the primary, epoch 3, change 815:",
                  "  a            a:7710  primary", "  b            b:7710  in sync, heard 0.3 s ago"));
  EXPECT_THAT(CopiesProblems(Two()), IsEmpty());
}

TEST(Copies, OneThatIsNotInSyncIsAProblemThatSaysWhyAndHowFarBehind) {
  proto::MdtCopies copies = Two();
  AddMember(&copies, "c", false, "catching up")->set_sequence(800);
  AddMember(&copies, "d", false, "away: no connection");
  EXPECT_THAT(CopiesLines(copies)[0], HasSubstr("2 of 4 copies in sync"));
  EXPECT_THAT(CopiesLines(copies)[3], HasSubstr("catching up, 15 changes behind, heard"));
  EXPECT_THAT(CopiesProblems(copies),
              ElementsAre("the MDS c at c:7710 is not in sync: catching up, 15 changes behind",
                          "the MDS d at d:7710 is not in sync: away: no connection"));
}

// A member may have told of a change that the primary counts a moment later.
TEST(Copies, NobodyIsAhead) {
  proto::MdtCopies copies = Two();
  copies.mutable_members(1)->set_sequence(816);
  EXPECT_EQ(CopiesToJson(copies)["members"][1]["lag"], 0);
  EXPECT_THAT(CopiesLines(copies)[2], Not(HasSubstr("behind")));
}

TEST(Copies, AreInTheJsonOfTheStatusIfThereAreSeveral) {
  proto::ClusterStatus status;
  EXPECT_FALSE(StatusToJson(status).contains("copies"));
  *status.mutable_copies() = Two();
  status.mutable_copies()->mutable_members(1)->set_in_sync(false);
  const Json out = StatusToJson(status);
  EXPECT_EQ(out["copies"]["primary"], "a");
  EXPECT_EQ(out["copies"]["epoch"], 3);
  EXPECT_EQ(out["copies"]["members"][1]["in_sync"], false);
  EXPECT_EQ(out["problems"].size(), 1u);
}

}  // namespace
}  // namespace nacre::cli
