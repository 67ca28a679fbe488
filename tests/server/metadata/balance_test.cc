// Tests which stripes come to lie where, so that OSTs are filled more evenly.
#include "server/metadata/balance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

namespace nacre::mds {
namespace {

using testing::ElementsAre;

constexpr uint64_t kGiB = 1 << 30;
constexpr double kMargin = 0.005;

Balance::Ost Filled(OstIndex index, uint64_t used_gib, uint64_t total_gib = 100, uint32_t copies = 1) {
  return {index, copies, total_gib * kGiB, used_gib * kGiB};
}

Inode FileOn(std::vector<OstIndex> osts, uint64_t bytes) {
  Inode inode;
  inode.mode = S_IFREG | 0644;
  inode.size = bytes;
  inode.blocks = bytes / 512;
  inode.layout.components.push_back({kEndOfFile, 1 << 20, std::move(osts)});
  return inode;
}

std::vector<OstIndex> PlanOf(const Balance& balance, const Inode& file, bool may_cross = false) {
  auto plan = balance.Better(file, may_cross);
  return plan ? plan->osts : std::vector<OstIndex>();
}

TEST(Balance, AStripeGoesToTheEmptiest) {
  const Balance balance({Filled(0, 60), Filled(1, 10), Filled(2, 20)}, kMargin);
  EXPECT_NEAR(balance.Spread(), 0.5, 1e-9);
  EXPECT_FALSE(balance.IsSettled());
  EXPECT_THAT(PlanOf(balance, FileOn({0}, kGiB)), ElementsAre(1));
  EXPECT_THAT(PlanOf(balance, FileOn({1}, kGiB)), ElementsAre());
  EXPECT_THAT(PlanOf(balance, FileOn({2}, kGiB)), ElementsAre());
}

TEST(Balance, StripesOfOneComponentLieApartAndThoseThatLieWellStay) {
  const Balance balance({Filled(0, 60), Filled(1, 10), Filled(2, 20), Filled(3, 60)}, kMargin);
  EXPECT_THAT(PlanOf(balance, FileOn({0, 1}, kGiB)), ElementsAre(2, 1));
  const std::vector<OstIndex> both = PlanOf(balance, FileOn({0, 3}, kGiB));
  EXPECT_THAT(both, testing::UnorderedElementsAre(1, 2));
  // No OST is left for a stripe of its own.
  EXPECT_THAT(PlanOf(balance, FileOn({0, 1, 2, 3}, kGiB)), ElementsAre());
  auto plan = balance.Better(FileOn({0, 1}, kGiB), false);
  EXPECT_EQ(plan->bytes, kGiB / 2);
}

TEST(Balance, OstsOfOtherCopiesAreNoTargets) {
  const Balance balance({Filled(0, 60), Filled(1, 30), Filled(2, 0, 100, 2), Filled(3, 2, 100, 2)}, kMargin);
  EXPECT_THAT(PlanOf(balance, FileOn({0}, kGiB)), ElementsAre(1));
  const std::vector<Balance::Class> classes = balance.Classes();
  ASSERT_EQ(classes.size(), 2u);
  EXPECT_NEAR(classes[0].mean, 0.45, 1e-9);
  EXPECT_NEAR(classes[0].spread(), 0.3, 1e-9);
  EXPECT_NEAR(static_cast<double>(classes[0].excess_bytes), 15.0 * kGiB, 1e6);
  EXPECT_NEAR(classes[1].spread(), 0.02, 1e-9);
}

TEST(Balance, TheMeanIsOfAllSpaceWhereOstsAreOfDifferentSizes) {
  const Balance balance({Filled(0, 60, 100), Filled(1, 0, 200)}, kMargin);
  ASSERT_EQ(balance.Classes().size(), 1u);
  EXPECT_NEAR(balance.Classes()[0].mean, 0.2, 1e-9);
  EXPECT_NEAR(static_cast<double>(balance.Classes()[0].excess_bytes), 40.0 * kGiB, 1e6);
}

TEST(Balance, OneEmptyOstAmongVeryManyGetsItsShare) {
  std::vector<Balance::Ost> osts = {Filled(0, 0)};
  for (OstIndex i = 1; i <= 200; ++i) osts.push_back(Filled(i, 50));
  const Balance balance(osts, kMargin);
  EXPECT_FALSE(balance.IsSettled());
  EXPECT_THAT(PlanOf(balance, FileOn({7}, kGiB / 8)), ElementsAre(0));
}

TEST(Balance, TheMeanIsCrossedOnlyWhereItMayAndHelps) {
  const Balance two({Filled(0, 80), Filled(1, 80), Filled(2, 0)}, kMargin);
  EXPECT_THAT(PlanOf(two, FileOn({0}, 40 * kGiB)), ElementsAre());
  EXPECT_THAT(PlanOf(two, FileOn({0}, 40 * kGiB), true), ElementsAre(2));
  EXPECT_THAT(PlanOf(two, FileOn({0}, 80 * kGiB), true), ElementsAre()) << "it would only change sides";
  EXPECT_THAT(PlanOf(two, FileOn({0}, 70 * kGiB), true), ElementsAre()) << "hardly better";
}

TEST(Balance, MovesComeToAnEnd) {
  Balance balance({Filled(0, 60), Filled(1, 0)}, kMargin);
  const Inode file = FileOn({0}, kGiB);
  int moves = 0;
  for (; balance.Better(file, false); ++moves) balance.Move({0}, {1}, {kGiB});
  EXPECT_EQ(moves, 30);
  EXPECT_TRUE(balance.IsSettled());
  EXPECT_THAT(PlanOf(balance, file, true), ElementsAre());
  EXPECT_THAT(PlanOf(balance, FileOn({1}, kGiB), true), ElementsAre());
}

TEST(Balance, FilesWithoutObjectsOrOnOtherOstsStay) {
  const Balance balance({Filled(0, 60), Filled(1, 0)}, kMargin);
  EXPECT_THAT(PlanOf(balance, FileOn({0, 9}, kGiB)), ElementsAre()) << "OST 9 takes no part";
  EXPECT_THAT(PlanOf(balance, FileOn({0}, 0)), ElementsAre());
  Inode small = FileOn({0}, 4096);
  small.inline_data = true;
  EXPECT_THAT(PlanOf(balance, small), ElementsAre());
  Inode directory = FileOn({0}, kGiB);
  directory.mode = S_IFDIR | 0755;
  EXPECT_THAT(PlanOf(balance, directory), ElementsAre());
}

TEST(Balance, ATargetKeepsATwentiethFree) {
  const Balance balance({Filled(0, 100, 100), Filled(1, 94, 100), Filled(2, 99, 100)}, 0.0);
  EXPECT_THAT(PlanOf(balance, FileOn({0}, kGiB)), ElementsAre(1));
  EXPECT_THAT(PlanOf(balance, FileOn({0}, 2 * kGiB)), ElementsAre());
  EXPECT_THAT(PlanOf(balance, FileOn({0}, 7 * kGiB), true), ElementsAre());
}

TEST(Balance, BlocksAreSharedOutByTheObjectsSizes) {
  Inode file = FileOn({0, 1}, 3 << 20);
  EXPECT_THAT(StripeBytes(file), ElementsAre(2 << 20, 1 << 20));
  file.blocks /= 2;  // it has holes
  EXPECT_THAT(StripeBytes(file), ElementsAre(1 << 20, 1 << 19));
  file.size = 0;  // space that is set aside
  EXPECT_THAT(StripeBytes(file), ElementsAre(3 << 18, 3 << 18));
}

}  // namespace
}  // namespace nacre::mds
