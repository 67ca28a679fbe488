#include "daemon/cli/rebalance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nacre::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Four OSTs, one of them down.
proto::RebalanceState Uneven() {
  proto::RebalanceState state;
  state.set_threshold(500);
  proto::OstClass* one = state.add_classes();
  one->set_copies(1);
  one->set_osts(3);
  one->set_down(1);
  one->set_mean(30);
  one->set_fullest(45.25);
  one->set_emptiest(12);
  one->set_excess_bytes(3ull << 30);
  return state;
}

TEST(Rebalance, AThresholdIsANumberOfPoints) {
  EXPECT_EQ(*ParseThreshold("5"), 500u);
  EXPECT_EQ(*ParseThreshold("2.5"), 250u);
  EXPECT_EQ(*ParseThreshold("0.01"), 1u);
  EXPECT_EQ(*ParseThreshold("100"), 10'000u);
  for (const char* wrong : {"", "0", "-1", "nan", "-nan", "inf", "100.1", "0.004", "5%", "five", "5 5"}) {
    auto threshold = ParseThreshold(wrong);
    ASSERT_FALSE(threshold.ok()) << wrong;
    EXPECT_TRUE(absl::IsInvalidArgument(threshold.status())) << threshold.status();
    EXPECT_THAT(std::string(threshold.status().message()),
                HasSubstr("'" + std::string(wrong) + "': percentage points from 0.01 to 100"));
  }
}

TEST(Rebalance, ADryRunSaysHowMuchWouldMove) {
  EXPECT_THAT(
      DryRunLines(Uneven()),
      ElementsAre("3 OSTs: from 12.0% to 45.2% full, mean 30.0%; 1 down",
                  "they are 33.25 percentage points apart (threshold 5): about 3.00 GiB would be moved"));
  proto::RebalanceState even = Uneven();
  even.set_even(true);
  even.set_threshold(3350);
  EXPECT_THAT(
      DryRunLines(even),
      ElementsAre(HasSubstr("3 OSTs"), "they are even: 33.25 percentage points apart (threshold 33.5)"));
}

TEST(Rebalance, OneOstIsSaidToBeAlone) {
  proto::RebalanceState state = Uneven();
  state.mutable_classes(0)->set_osts(1);
  EXPECT_FALSE(HasOneOst(state)) << "the other one is down";
  state.mutable_classes(0)->set_down(0);
  EXPECT_TRUE(HasOneOst(state));
  *state.add_classes() = state.classes(0);
  state.mutable_classes(1)->set_copies(2);
  EXPECT_THAT(DryRunLines(state),
              ElementsAre(HasSubstr("1 OST of 1 copy: from"), HasSubstr("1 OST of 2 copies: from"),
                          HasSubstr("no two OSTs of as many copies")));
  EXPECT_THAT(DryRunLines({}), ElementsAre(HasSubstr("no two OSTs")));
}

TEST(Rebalance, OneThatRunsIsShown) {
  proto::ClusterStatus status;
  EXPECT_THAT(RebalanceLines(status), IsEmpty());
  EXPECT_FALSE(StatusToJson(status).contains("rebalance"));
  *status.mutable_rebalance() = Uneven();
  status.mutable_rebalance()->set_end("OSTs are even");
  EXPECT_THAT(RebalanceLines(status), IsEmpty()) << "it has ended";
  proto::RebalanceState& state = *status.mutable_rebalance();
  state.set_running(true);
  state.set_moved_files(1);
  state.set_moved_bytes(3 << 20);
  EXPECT_THAT(RebalanceLines(status),
              ElementsAre("rebalancing: 1 file (3.00 MiB) moved, 33.25 percentage points apart (threshold 5)",
                          "  3 OSTs: from 12.0% to 45.2% full, mean 30.0%; 1 down"));
  state.set_stuck_files(2);
  state.set_problem("file /f stays where it is: busy");
  EXPECT_THAT(RebalanceLines(status),
              ElementsAre(HasSubstr("(threshold 5), 2 files could not be moved yet"), HasSubstr("3 OSTs"),
                          "  not yet: file /f stays where it is: busy"));
  const Json shown = StatusToJson(status)["rebalance"];
  EXPECT_EQ(shown["running"], true);
  EXPECT_EQ(shown["moved_files"], 1);
  EXPECT_EQ(shown["moved_bytes"], 3 << 20);
  EXPECT_EQ(shown["stuck_files"], 2);
  EXPECT_DOUBLE_EQ(shown["threshold"].get<double>(), 5);
  EXPECT_DOUBLE_EQ(shown["spread"].get<double>(), 33.25);
  EXPECT_DOUBLE_EQ(shown["classes"][0]["mean_percent"].get<double>(), 30);
}

// Of several numbers of copies the worst counts.
TEST(Rebalance, TheSpreadIsThatOfTheWorstClass) {
  proto::RebalanceState state = Uneven();
  proto::OstClass* two = state.add_classes();
  two->set_copies(2);
  two->set_osts(2);
  two->set_fullest(90);
  two->set_emptiest(10);
  EXPECT_DOUBLE_EQ(SpreadOf(state), 80);
}

}  // namespace
}  // namespace nacre::cli
