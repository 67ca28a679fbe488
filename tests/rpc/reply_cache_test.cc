#include "rpc/reply_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace nacre {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

struct Text {
  std::string text;
  size_t bytes() const { return text.size(); }
};

class ReplyCacheTest : public testing::Test {
 protected:
  using Cache = ReplyCache<Text>;
  using Turn = Cache::Turn;

  void Do(uint64_t sequence, uint64_t low_water, std::string answer = "done") {
    Cache::Begun begun = cache.Begin(sequence, low_water);
    ASSERT_EQ(begun.turn, Turn::kCarryOut) << sequence;
    begun.kept->text = std::move(answer);
    EXPECT_THAT(cache.End(sequence, true), IsEmpty());
  }
  Turn Ask(uint64_t sequence, uint64_t low_water) { return cache.Begin(sequence, low_water).turn; }

  std::vector<uint64_t> forgotten;
  Cache cache{{4, 100}, [this](uint64_t sequence, const Text&) { forgotten.push_back(sequence); }};
};

TEST_F(ReplyCacheTest, ARepeatIsAnsweredUntilTheClientHasTheAnswer) {
  Do(1, 1, "one");
  Cache::Begun repeat = cache.Begin(1, 1);
  ASSERT_EQ(repeat.turn, Turn::kAnswered);
  EXPECT_EQ(repeat.kept->text, "one");
  EXPECT_THAT(forgotten, IsEmpty());
  Do(2, 2);
  EXPECT_THAT(forgotten, ElementsAre(1));
  EXPECT_EQ(Ask(1, 1), Turn::kStale);
}

TEST_F(ReplyCacheTest, ARepeatOfWhatIsUnderWayWaitsForItsEnd) {
  ASSERT_EQ(Ask(1, 1), Turn::kCarryOut);
  Cache::Begun one = cache.Begin(1, 1), another = cache.Begin(1, 1);
  ASSERT_EQ(one.turn, Turn::kUnderWay);
  ASSERT_EQ(another.turn, Turn::kUnderWay);
  cache.Find(1)->text = "one";
  for (const OneShot<Unit>& waiter : cache.End(1, true)) waiter.Set({});
  EXPECT_TRUE(one.over->IsSet());
  EXPECT_TRUE(another.over->IsSet());
  EXPECT_EQ(Ask(1, 1), Turn::kAnswered);
  EXPECT_THAT(cache.End(1, true), IsEmpty());
}

TEST_F(ReplyCacheTest, WhatEndsUndoneIsCarriedOutByItsRepeat) {
  ASSERT_EQ(Ask(1, 1), Turn::kCarryOut);
  Cache::Begun repeat = cache.Begin(1, 1);
  EXPECT_EQ(cache.End(1, false).size(), 1u);
  EXPECT_THAT(forgotten, ElementsAre(1));
  EXPECT_EQ(Ask(1, 1), Turn::kCarryOut);
}

// A mutation that the client does not wait for any more, as its low water says, is still under way.
TEST_F(ReplyCacheTest, WhatIsUnderWayStaysAndKeepsNoOther) {
  ASSERT_EQ(Ask(1, 1), Turn::kCarryOut);
  Do(2, 1);
  Do(3, 3);
  EXPECT_THAT(forgotten, ElementsAre(2));
  EXPECT_EQ(Ask(1, 1), Turn::kUnderWay);
  EXPECT_EQ(Ask(2, 2), Turn::kStale);
  (void)cache.End(1, true);
  EXPECT_EQ(Ask(4, 3), Turn::kCarryOut);
  EXPECT_THAT(forgotten, ElementsAre(2, 1));
}

TEST_F(ReplyCacheTest, AnswersBehindOneThatWaitsForLongAreAcknowledgedOneByOne) {
  ASSERT_EQ(Ask(1, 1), Turn::kCarryOut);
  Do(2, 1);
  Do(3, 1);
  Do(4, 1);
  cache.Acknowledge(5, {{1, 2}, {3, 4}});
  EXPECT_THAT(forgotten, ElementsAre(2, 4));
  EXPECT_EQ(Ask(2, 1), Turn::kStale);
  EXPECT_EQ(Ask(3, 1), Turn::kAnswered);
  EXPECT_EQ(Ask(1, 1), Turn::kUnderWay);
  cache.Acknowledge(4, {});  // came late: it says less than what is known
  EXPECT_EQ(Ask(3, 1), Turn::kAnswered);
  EXPECT_EQ(Ask(5, 1), Turn::kCarryOut);
}

TEST_F(ReplyCacheTest, ALowWaterAboveItsOwnRequestIsNotBelieved) {
  EXPECT_EQ(Ask(1, ~uint64_t{0}), Turn::kMalformed);
  EXPECT_EQ(Ask(0, 0), Turn::kMalformed);
  EXPECT_EQ(cache.low_water(), 0u);
  EXPECT_EQ(Ask(1, 1), Turn::kCarryOut);
}

TEST_F(ReplyCacheTest, AsManyAsTheLimitSays) {
  for (uint64_t sequence = 1; sequence <= 4; ++sequence) Do(sequence, 1);
  EXPECT_EQ(Ask(5, 1), Turn::kFull);
  EXPECT_EQ(Ask(3, 1), Turn::kAnswered);
  EXPECT_EQ(Ask(5, 2), Turn::kCarryOut);
}

TEST_F(ReplyCacheTest, AsManyBytesAsTheLimitSays) {
  Do(1, 1, std::string(60, 'a'));
  Do(2, 1, std::string(60, 'b'));
  EXPECT_EQ(cache.bytes(), 120u);
  EXPECT_EQ(Ask(3, 1), Turn::kFull);
  EXPECT_EQ(Ask(3, 2), Turn::kCarryOut);
  EXPECT_EQ(cache.bytes(), 60u);
  cache.Clear();
  EXPECT_EQ(cache.bytes(), 0u);
}

TEST_F(ReplyCacheTest, WhatTheStoreHasIsAnsweredAfterARestart) {
  EXPECT_TRUE(cache.Restore(3, {"three"}));
  EXPECT_FALSE(cache.Restore(3, {"again"}));
  EXPECT_EQ(cache.bytes(), 5u);
  EXPECT_EQ(cache.Begin(3, 2).kept->text, "three");
  cache.RaiseLowWater(4);
  EXPECT_THAT(forgotten, ElementsAre(3));
  EXPECT_EQ(Ask(3, 3), Turn::kStale);
  EXPECT_EQ(cache.bytes(), 0u);
}

}  // namespace
}  // namespace nacre
