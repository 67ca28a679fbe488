#include "server/kv/losses.h"

#include <gtest/gtest.h>

#include "server/kv/mem_kv.h"
#include "tests/common/await.h"

namespace nacre {
namespace {

class LossesTest : public testing::Test {
 protected:
  uint64_t Start(const std::string& boot) {
    auto losses = Await(CountLosses(&store_, "L", boot));
    EXPECT_TRUE(losses.ok()) << losses.status();
    return losses.value_or(~uint64_t{0});
  }
  void Commit() {
    KvBatch batch;
    batch.Put("x", "y");
    EXPECT_TRUE(Await(store_.Commit(std::move(batch))).ok());
  }
  MemKv store_;
  SeededRandom random_{7};
};

TEST_F(LossesTest, AStartInAnotherBootIsOne) {
  EXPECT_EQ(Start("a"), 0u);
  EXPECT_EQ(Start("a"), 0u);  // the process was killed
  EXPECT_EQ(Start("b"), 1u);
  EXPECT_EQ(Start("b"), 1u);
  EXPECT_EQ(Start("a"), 2u);
}

TEST_F(LossesTest, ACleanEndIsNone) {
  EXPECT_EQ(Start("a"), 0u);
  EXPECT_TRUE(Await(EndClean(&store_, "L")).ok());
  EXPECT_EQ(Start("b"), 0u);
  EXPECT_EQ(Start("c"), 1u);
}

TEST_F(LossesTest, WhetherThereMayHaveBeenOneIsKnownBeforeItIsCounted) {
  auto may = [this](std::string_view boot) { return MayHaveLost(&store_, "L", boot).value(); };
  EXPECT_TRUE(may("a")) << "there is no record";
  EXPECT_EQ(Start("a"), 0u);
  EXPECT_FALSE(may("a")) << "the process was killed";
  EXPECT_TRUE(may("b"));
  EXPECT_TRUE(may("")) << "nobody knows";
  EXPECT_EQ(Start("b"), 1u);
  EXPECT_TRUE(Await(EndClean(&store_, "L")).ok());
  EXPECT_FALSE(may("c"));
}

TEST_F(LossesTest, OneThatIsSuspectedIsCountedInTheSameBoot) {
  auto may = [this](std::string_view boot) { return MayHaveLost(&store_, "L", boot).value(); };
  EXPECT_EQ(Start("a"), 0u);
  EXPECT_TRUE(Await(SuspectLoss(&store_, "L")).ok());
  EXPECT_TRUE(may("a"));
  EXPECT_EQ(Start("a"), 1u);
  EXPECT_FALSE(may("a"));
  EXPECT_EQ(Start("a"), 1u);
}

// The knowledge that there may have been a loss is not lost with the rest.
TEST_F(LossesTest, TheRecordIsOnStableStorageBeforeAnythingIsAnswered) {
  EXPECT_EQ(Start("a"), 0u);
  EXPECT_TRUE(Await(EndClean(&store_, "L")).ok());
  for (uint64_t boot = 0; boot < 20; ++boot) {
    EXPECT_EQ(Start(std::to_string(boot)), boot);
    Commit();
    store_.LosePower(random_);
  }
}

TEST_F(LossesTest, DamageIsNamed) {
  KvBatch batch;
  batch.Put("L", "short");
  ASSERT_TRUE(Await(store_.Commit(std::move(batch))).ok());
  EXPECT_TRUE(absl::IsDataLoss(Await(CountLosses(&store_, "L", "a")).status()));
  EXPECT_TRUE(absl::IsDataLoss(ParseLossRecord(std::string(8, 0) + "\x02").status()));
  LossRecord record{3, true, "boot"};
  auto parsed = ParseLossRecord(EncodeLossRecord(record));
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->losses, 3u);
  EXPECT_TRUE(parsed->clean);
  EXPECT_EQ(parsed->boot, "boot");
}

}  // namespace
}  // namespace nacre
