#include "server/cluster/ost_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

namespace nacre::cluster {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;

std::vector<OstSpace> Osts(std::vector<uint64_t> free) {
  std::vector<OstSpace> osts;
  for (uint64_t bytes : free) osts.push_back({static_cast<OstIndex>(osts.size()), 100 * kGiB, bytes});
  return osts;
}

TEST(OstChoice, AlikeUpToSeventeenPercent) {
  EXPECT_TRUE(SpaceIsAlike(Osts({100, 83})));
  EXPECT_FALSE(SpaceIsAlike(Osts({100, 82})));
  EXPECT_TRUE(SpaceIsAlike(Osts({0, 0})));
  EXPECT_TRUE(SpaceIsAlike({}));
}

TEST(OstChoice, RoundRobinWhileSpaceIsAlike) {
  SeededRandom random(1);
  OstChooser chooser(random);
  const UsableOsts osts(Osts({kGiB, kGiB, kGiB, kGiB}));
  EXPECT_THAT(chooser.Choose(osts, 1), testing::ElementsAre(0));
  EXPECT_THAT(chooser.Choose(osts, 2), testing::ElementsAre(1, 2));
  EXPECT_THAT(chooser.Choose(osts, 9), testing::ElementsAre(3, 0, 1, 2));
  EXPECT_THAT(chooser.Choose(UsableOsts({}), 3), testing::IsEmpty());
}

TEST(OstChoice, WeightedByFreeSpaceOtherwise) {
  SeededRandom random(1);
  OstChooser chooser(random);
  const UsableOsts osts(Osts({30 * kGiB, 10 * kGiB, 0}));
  std::map<OstIndex, int> count;
  for (int i = 0; i < 4000; ++i) ++count[chooser.Choose(osts, 1)[0]];
  EXPECT_NEAR(count[0], 3000, 150);
  EXPECT_NEAR(count[1], 1000, 150);
  EXPECT_EQ(count[2], 0);
}

TEST(OstChoice, StripesOfOneFileAreOnDifferentOsts) {
  SeededRandom random(1);
  OstChooser chooser(random);
  const UsableOsts osts(Osts({90 * kGiB, 0, kGiB, 0, 20 * kGiB}));
  std::map<OstIndex, int> second;
  for (int i = 0; i < 4000; ++i) {
    auto chosen = chooser.Choose(osts, 5);
    EXPECT_EQ(std::set<OstIndex>(chosen.begin(), chosen.end()).size(), 5u);
    EXPECT_EQ(chosen[3], 1u) << "those without any space come last";
    EXPECT_EQ(chosen[4], 3u);
    if (chosen[0] == 0) ++second[chosen[1]];
  }
  EXPECT_NEAR(second[4] / double(second[2] + second[4]), 20.0 / 21, 0.02) << "by what is left";
  EXPECT_THAT(chooser.Choose(osts, 2).size(), 2u);
}

TEST(UsableOsts, AreSortedByTheirNumberOfCopies) {
  std::vector<OstSpace> up = Osts({kGiB, kGiB, kGiB});
  up[1].copies = 2;
  std::vector<OstSpace> all = up;
  all.push_back({9, kGiB, kGiB, 3});  // down
  all.push_back({8, kGiB, kGiB, 2});  // likewise, but another one of two is up
  const UsableOsts osts(up, all);
  EXPECT_EQ(osts.size(), 3u);
  EXPECT_EQ(osts.WithCopies(0), osts.WithCopies(1));
  ASSERT_NE(osts.WithCopies(1), nullptr);
  EXPECT_EQ(osts.WithCopies(1)->size(), 2u);
  ASSERT_NE(osts.WithCopies(2), nullptr);
  ASSERT_EQ(osts.WithCopies(2)->size(), 1u);
  EXPECT_EQ((*osts.WithCopies(2))[0].index, 1u);
  ASSERT_NE(osts.WithCopies(3), nullptr);
  EXPECT_EQ((*osts.WithCopies(3))[0].index, 9u);
  EXPECT_EQ(osts.WithCopies(4), nullptr);
  EXPECT_THAT(osts.Copies(), testing::ElementsAre(1, 2, 3));
  const UsableOsts alike(Osts({kGiB, kGiB}));
  EXPECT_EQ(alike.WithCopies(1), &alike);
  EXPECT_EQ(alike.WithCopies(0), &alike);
  EXPECT_EQ(UsableOsts({}).WithCopies(0), nullptr);
}

}  // namespace
}  // namespace nacre::cluster
