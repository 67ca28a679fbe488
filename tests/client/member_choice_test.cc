#include "client/member_choice.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace nacre::client {
namespace {

using Outcome = MemberChoice::Outcome;
using Place = MemberChoice::Place;

constexpr uint64_t kReadSize = 1 << 20;
constexpr uint64_t kStretch = MemberChoice::kStretch;

class MemberChoiceTest : public testing::Test {
 protected:
  MemberChoiceTest() { choice_.Set({"second", "third"}); }

  // Where a read goes that is over at once.
  std::string Ask(const Place& place, Outcome outcome = Outcome::kAnswered) {
    const std::string member = choice_.Begin(place, kReadSize, now_);
    choice_.End(member, place, kReadSize, outcome, now_);
    return member;
  }
  // A place whose reads go there.
  Place PlaceOf(const std::string& member) {
    for (uint64_t n = 1; n < 1000; ++n) {
      if (Ask({{n, 0}, 0}) == member) return {{n, 0}, 0};
    }
    ADD_FAILURE() << "nothing goes to '" << member << "'";
    return {};
  }

  MemberChoice choice_;
  Duration now_ = 100s;
};

TEST_F(MemberChoiceTest, OneMemberAloneIsTheHead) {
  choice_.Set({});
  EXPECT_TRUE(choice_.empty());
  for (uint64_t n = 0; n < 50; ++n) EXPECT_EQ(Ask({{n, 0}, 0}), "");
}

TEST_F(MemberChoiceTest, PartsAreSpreadAlikeAndEachStaysWhereItIs) {
  std::map<std::string, int> reads;
  for (uint64_t object = 0; object < 30; ++object) {
    for (uint64_t part = 0; part < 20; ++part) {
      const std::string member = Ask({{object, 2}, part * kStretch});
      ++reads[member];
      EXPECT_EQ(Ask({{object, 2}, part * kStretch + kStretch - 1}), member);
    }
  }
  ASSERT_EQ(reads.size(), 3u);
  for (const auto& [member, count] : reads) EXPECT_NEAR(count, 200, 50) << member;
}

TEST_F(MemberChoiceTest, OneThatHasMuchMoreToDoIsPassedOver) {
  const Place place = PlaceOf("second");
  EXPECT_EQ(choice_.Begin(place, MemberChoice::kSlack, now_), "second");
  EXPECT_EQ(Ask(place), "second") << "as much as that is not much";
  EXPECT_EQ(choice_.Begin(place, kReadSize, now_), "second");
  EXPECT_NE(Ask(place), "second");
  choice_.End("second", place, kReadSize, Outcome::kAnswered, now_);
  EXPECT_EQ(Ask(place), "second");
}

TEST_F(MemberChoiceTest, OneThatFailsIsLeftAloneForLongerEachTime) {
  const Place place = PlaceOf("second");
  Duration pause = MemberChoice::kFirstPause;
  for (int failures = 0; failures < 8; ++failures) {
    EXPECT_EQ(Ask(place, Outcome::kFailed), "second") << failures;
    EXPECT_EQ(Ask(place), "") << failures;
    now_ += pause - 1ms;
    EXPECT_EQ(Ask(place), "") << failures;
    now_ += 1ms;
    pause = std::min(2 * pause, MemberChoice::kLongestPause);
  }
  EXPECT_EQ(pause, MemberChoice::kLongestPause);
  EXPECT_EQ(Ask(place), "second");  // it is well again
  EXPECT_EQ(Ask(place, Outcome::kFailed), "second");
  now_ += MemberChoice::kFirstPause;
  EXPECT_EQ(Ask(place), "second") << "the first time in a row";
}

TEST_F(MemberChoiceTest, ReadsThatFailTogetherCountOnce) {
  const Place place = PlaceOf("second");
  for (int i = 0; i < 4; ++i) EXPECT_EQ(choice_.Begin(place, kReadSize, now_), "second");
  for (int i = 0; i < 4; ++i) choice_.End("second", place, kReadSize, Outcome::kFailed, now_);
  now_ += MemberChoice::kFirstPause;
  EXPECT_EQ(Ask(place), "second");
}

TEST_F(MemberChoiceTest, OneReadAtATimeFindsOutWhetherItIsWellAgain) {
  const Place place = PlaceOf("second");
  EXPECT_EQ(Ask(place, Outcome::kFailed), "second");
  now_ += MemberChoice::kFirstPause;
  EXPECT_EQ(choice_.Begin(place, kReadSize, now_), "second");
  EXPECT_EQ(Ask(place), "");
  choice_.End("second", place, kReadSize, Outcome::kAnswered, now_);
  EXPECT_EQ(choice_.Begin(place, kReadSize, now_), "second");
  EXPECT_EQ(Ask(place), "second");
}

TEST_F(MemberChoiceTest, AnObjectThatIsBeingChangedIsReadFromTheHeadForAMoment) {
  const Place place = PlaceOf("third");
  EXPECT_EQ(Ask(place, Outcome::kChanged), "third");
  EXPECT_EQ(Ask(place), "");
  std::set<std::string> others;
  for (uint64_t n = 1; n < 100; ++n) others.insert(Ask({{n, 0}, 0}));
  EXPECT_TRUE(others.contains("third")) << "the member has done nothing wrong";
  now_ += MemberChoice::kChangingPause;
  EXPECT_EQ(Ask(place), "third");
}

TEST_F(MemberChoiceTest, AMemberThatLeavesTakesNothingAlongAndOneThatStaysKeepsItsPast) {
  const Place second = PlaceOf("second"), third = PlaceOf("third");
  EXPECT_EQ(choice_.Begin(third, 100 * kReadSize, now_), "third");
  EXPECT_EQ(Ask(second, Outcome::kFailed), "second");
  choice_.Set({"second"});
  choice_.End("third", third, 100 * kReadSize, Outcome::kFailed, now_);
  for (uint64_t n = 1; n < 50; ++n) EXPECT_EQ(Ask({{n, 0}, 0}), "") << "the second one has just failed";
  choice_.Set({"second", "third"});
  EXPECT_EQ(Ask(third), "third");
  now_ += MemberChoice::kFirstPause;
  EXPECT_EQ(Ask(second), "second");
}

}  // namespace
}  // namespace nacre::client
