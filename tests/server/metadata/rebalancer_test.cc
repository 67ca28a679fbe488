// Tests that OSTs become even, that it ends, and that it leaves alone what it should.
#include "server/metadata/rebalancer.h"

#include "tests/server/metadata/growth_fixture.h"

namespace nacre::mds {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

class RebalancerTest : public GrowthTest {
 protected:
  static constexpr uint64_t kOstBytes = 64 * kMiB;

  RebalancerTest() {
    harness.ost_bytes = kOstBytes;
    harness.used_bytes = [this](OstIndex ost) { return Used(ost); };
  }

  uint64_t Used(OstIndex ost) {
    uint64_t used = 0;
    for (const auto& [id, object] : harness.osts.objects[ost]) used += object.data.size();
    return used;
  }
  // Returns how far apart these are, in percentage points.
  double Spread(const std::vector<OstIndex>& osts) {
    uint64_t least = kOstBytes, most = 0;
    for (const OstIndex ost : osts) {
      least = std::min(least, Used(ost));
      most = std::max(most, Used(ost));
    }
    return 100.0 * static_cast<double>(most - least) / kOstBytes;
  }

  Fid MakeFileOn(std::vector<OstIndex> osts, uint64_t size) {
    const Fid f = MakeFile(absl::StrCat("f", files.size()), Pattern(size));
    proto::AdminRequest request = MigrateRequest(f, static_cast<int>(osts.size()));
    for (const OstIndex ost : osts) request.mutable_migrate()->add_osts(ost);
    EXPECT_THAT(Ask(request), IsOk());
    files.push_back(f);
    return f;
  }
  // Waits until what was left is gone, and the MDS knows it.
  void Settle() {
    client.StayFor(std::chrono::seconds(25));
    for (const Fid& f : files) generations[f] = LayoutOf(f).generation();
  }
  void Fill(std::vector<OstIndex> osts, int count, uint64_t size) {
    for (const OstIndex ost : osts)
      for (int i = 0; i < count; ++i) MakeFileOn({ost}, size);
    Settle();
  }

  proto::AdminReply Rebalance(proto::RebalanceOsts::Action action, uint32_t threshold = 500) {
    proto::AdminRequest request;
    request.mutable_rebalance()->set_action(action);
    request.mutable_rebalance()->set_threshold(threshold);
    return Ask(request);
  }
  proto::RebalanceState Begin(uint32_t threshold = 500) {
    const proto::AdminReply reply = Rebalance(proto::RebalanceOsts::START, threshold);
    EXPECT_THAT(reply, IsOk());
    return reply.rebalance();
  }
  proto::RebalanceState State() { return harness.Await(harness.server->GetStatus()).rebalance(); }
  proto::RebalanceState AwaitEnd() {
    for (int i = 0; i < 200 && State().running(); ++i) client.StayFor(std::chrono::seconds(5));
    const proto::RebalanceState state = State();
    EXPECT_FALSE(state.running()) << "it does not end: " << state.ShortDebugString();
    EXPECT_EQ(Records(Table::kRebalance), 0u);
    return state;
  }

  // Checks that every byte is there, nobody has another number of stripes, and nobody has moved more than
  // once.
  void CheckFiles(size_t moved) {
    size_t others = 0;
    for (const Fid& f : files) {
      const proto::Layout layout = LayoutOf(f);
      EXPECT_TRUE(ReadObjects(f) == Pattern(Attr(f).size())) << f.ToString();
      EXPECT_EQ(OstsOf(layout).size(), static_cast<size_t>(layout.components(0).ost_group_size()));
      EXPECT_LE(layout.generation(), generations[f] + 1) << f.ToString() << " has moved twice";
      others += layout.generation() != generations[f];
    }
    EXPECT_EQ(others, moved);
  }
  std::set<OstIndex> AllOsts() {
    std::set<OstIndex> osts;
    for (const Fid& f : files) osts.merge(OstsOf(LayoutOf(f)));
    return osts;
  }

  std::vector<Fid> files;
  std::map<Fid, uint32_t> generations;
};

TEST_F(RebalancerTest, NewOstsGetTheirShare) {
  Fill({0, 1}, 12, 2 * kMiB);
  const proto::RebalanceState begun = Begin();
  EXPECT_TRUE(begun.running());
  ASSERT_EQ(begun.classes_size(), 1);
  EXPECT_NEAR(begun.classes(0).mean(), 18.75, 0.01);
  EXPECT_NEAR(begun.classes(0).fullest(), 37.5, 0.01);
  EXPECT_EQ(begun.classes(0).excess_bytes(), 24 * kMiB);
  EXPECT_EQ(Records(Table::kRebalance), 1u);
  const proto::RebalanceState ended = AwaitEnd();
  EXPECT_TRUE(ended.even()) << ended.ShortDebugString();
  EXPECT_EQ(ended.moved_files(), 12u) << "no more than it takes";
  EXPECT_EQ(ended.moved_bytes(), 24 * kMiB);
  EXPECT_EQ(ended.stuck_files(), 0u);
  for (const OstIndex ost : {0, 1, 2, 3}) EXPECT_EQ(Used(ost), 12 * kMiB) << ost;
  CheckFiles(12);
  // Once more: there is nothing to do.
  const proto::RebalanceState again = Begin();
  EXPECT_FALSE(again.running());
  EXPECT_TRUE(again.even());
  CheckFiles(12);
}

TEST_F(RebalancerTest, StripesStayAsManyAndApart) {
  for (int i = 0; i < 10; ++i) MakeFileOn({0, 1}, 4 * kMiB);
  Settle();
  Begin();
  const proto::RebalanceState ended = AwaitEnd();
  EXPECT_TRUE(ended.even()) << ended.ShortDebugString();
  EXPECT_LE(Spread({0, 1, 2, 3}), 5);
  for (const Fid& f : files) {
    EXPECT_EQ(LayoutOf(f).components(0).ost_group_size(), 2);
    EXPECT_EQ(LayoutOf(f).components(0).stripe_size(), 64u << 10);
  }
  CheckFiles(ended.moved_files());
}

TEST_F(RebalancerTest, EndsWhereNoMoveHelps) {
  Fill({0}, 1, 20 * kMiB);
  EXPECT_TRUE(Begin().running());
  const proto::RebalanceState ended = AwaitEnd();
  EXPECT_FALSE(ended.even());
  EXPECT_THAT(ended.end(), HasSubstr("no move of a whole file"));
  CheckFiles(0);
}

// Two OSTs with two large files each: one has to go from each of them, though that is more than its share.
TEST_F(RebalancerTest, LargeFilesMoveIfThatHelps) {
  Fill({0, 1}, 2, 16 * kMiB);
  Begin();
  const proto::RebalanceState ended = AwaitEnd();
  EXPECT_TRUE(ended.even()) << ended.ShortDebugString();
  for (const OstIndex ost : {0, 1, 2, 3}) EXPECT_EQ(Used(ost), 16 * kMiB) << ost;
  CheckFiles(2);
}

class RebalancerRestartTest : public RebalancerTest, public testing::WithParamInterface<bool> {};

TEST_P(RebalancerRestartTest, ARestartGoesOn) {
  harness.options.drain_rate = kMiB;
  harness.Restart();
  harness.RegisterOsts();
  client.Reconnect();
  Fill({0, 1}, 12, 2 * kMiB);
  const uint64_t run = Begin().run();
  client.StayFor(std::chrono::seconds(7));
  const uint64_t before = State().moved_files();
  EXPECT_GT(before, 1u);
  EXPECT_LT(before, 10u);
  client.StayFor(std::chrono::seconds(1));
  if (GetParam())
    harness.LosePower();
  else
    harness.Restart();
  harness.RegisterOsts();
  client.Reconnect(files);
  EXPECT_TRUE(State().running());
  EXPECT_EQ(State().run(), run);
  EXPECT_EQ(State().threshold(), 500u);
  const proto::RebalanceState ended = AwaitEnd();
  EXPECT_TRUE(ended.even()) << ended.ShortDebugString();
  EXPECT_LE(Spread({0, 1, 2, 3}), 5);
  for (const Fid& f : files) EXPECT_TRUE(ReadObjects(f) == Pattern(2 * kMiB));
  if (!GetParam()) CheckFiles(12);
}

INSTANTIATE_TEST_SUITE_P(OfTheProcessOrTheMachine, RebalancerRestartTest, testing::Bool());

TEST_F(RebalancerTest, OneThatIsDrainedOrDownTakesNoPart) {
  ASSERT_THAT(Manage(2, proto::ManageOst::DRAIN), IsOk());
  Fill({0}, 12, 2 * kMiB);
  harness.osts.away.insert(3);
  client.StayFor(std::chrono::seconds(15));
  const proto::RebalanceState begun = Begin();
  ASSERT_EQ(begun.classes_size(), 1);
  EXPECT_EQ(begun.classes(0).osts(), 2u);
  EXPECT_EQ(begun.classes(0).down(), 1u);
  client.StayFor(std::chrono::minutes(3));
  EXPECT_EQ(Used(0), 12 * kMiB);
  EXPECT_EQ(Used(1), 12 * kMiB);
  EXPECT_EQ(AllOsts(), (std::set<OstIndex>{0, 1}));
  EXPECT_TRUE(State().running()) << "it waits for OST 3";
  EXPECT_THAT(State().problem(), HasSubstr("OST 3 is down"));
  harness.osts.away.clear();
  const proto::RebalanceState ended = AwaitEnd();
  EXPECT_EQ(AllOsts(), (std::set<OstIndex>{0, 1, 3}));
  // Files that have gone from OST 0 to OST 1 go on from there.
  for (const OstIndex ost : {0, 1, 3}) EXPECT_EQ(Used(ost), 8 * kMiB) << ost;
  EXPECT_TRUE(ended.even()) << ended.ShortDebugString();
  for (const Fid& f : files) EXPECT_TRUE(ReadObjects(f) == Pattern(2 * kMiB));
}

// One that is even without the OST that is down is told of when it has started, too.
TEST_F(RebalancerTest, WaitsForOneThatIsDownEvenIfTheOthersAreEven) {
  Fill({0, 1, 2}, 4, 2 * kMiB);
  harness.osts.away.insert(3);
  client.StayFor(std::chrono::seconds(15));
  EXPECT_TRUE(Begin().running());
  client.StayFor(std::chrono::seconds(90));
  EXPECT_THAT(State().problem(), HasSubstr("OST 3 is down"));
  EXPECT_EQ(State().moved_files(), 0u);
  harness.osts.away.clear();
  EXPECT_TRUE(AwaitEnd().even());
  EXPECT_GT(Used(3), 0u);
}

TEST_F(RebalancerTest, OneThatComesToBeDrainedMeanwhileGetsNothingMore) {
  harness.options.drain_rate = kMiB;
  harness.Restart();
  harness.RegisterOsts();
  client.Reconnect();
  Fill({0, 1}, 12, 2 * kMiB);
  Begin();
  client.StayFor(std::chrono::seconds(8));
  ASSERT_THAT(Manage(3, proto::ManageOst::DRAIN), IsOk());
  const proto::RebalanceState ended = AwaitEnd();
  client.StayFor(std::chrono::minutes(2));
  EXPECT_FALSE(AllOsts().contains(3));
  EXPECT_GT(ended.moved_files(), 0u);
  for (const Fid& f : files) EXPECT_TRUE(ReadObjects(f) == Pattern(2 * kMiB));
}

TEST_F(RebalancerTest, OstsOfDifferentCopiesHaveNothingToDoWithEachOther) {
  harness.SetCopies(2, 2);
  harness.SetCopies(3, 2);
  client.StayFor(std::chrono::seconds(5));
  Fill({0}, 12, 2 * kMiB);
  const proto::RebalanceState begun = Begin();
  ASSERT_EQ(begun.classes_size(), 2);
  EXPECT_EQ(begun.classes(0).copies(), 1u);
  EXPECT_EQ(begun.classes(1).copies(), 2u);
  EXPECT_TRUE(AwaitEnd().even());
  EXPECT_EQ(Used(0), 12 * kMiB);
  EXPECT_EQ(Used(1), 12 * kMiB);
  EXPECT_EQ(AllOsts(), (std::set<OstIndex>{0, 1}));
  CheckFiles(6);
}

TEST_F(RebalancerTest, IsStoppedInTheMiddleOfAFile) {
  harness.options.drain_rate = 64 << 10;
  harness.Restart();
  harness.RegisterOsts();
  client.Reconnect();
  Fill({0}, 6, 8 * kMiB);
  EXPECT_THAT(Rebalance(proto::RebalanceOsts::STOP), IsOk()) << "there is nothing to be stopped";
  const uint64_t first = Begin().run();
  client.StayFor(std::chrono::seconds(10));
  EXPECT_EQ(Records(Table::kNewObjects), 1u);
  EXPECT_THAT(Rebalance(proto::RebalanceOsts::STOP), IsOk());
  EXPECT_FALSE(State().running());
  EXPECT_THAT(State().end(), HasSubstr("stopped"));
  EXPECT_EQ(Records(Table::kRebalance), 0u);
  client.StayFor(std::chrono::minutes(3));
  EXPECT_EQ(Records(Table::kNewObjects), 0u);
  EXPECT_EQ(Used(0), 48 * kMiB);
  CheckFiles(0);
  harness.Restart();
  harness.RegisterOsts();
  client.Reconnect(files);
  client.StayFor(std::chrono::seconds(20));
  EXPECT_FALSE(State().running());
  const proto::RebalanceState second = Begin();
  EXPECT_TRUE(second.running());
  EXPECT_NE(second.run(), first);
}

TEST_F(RebalancerTest, AnotherThresholdIsTakenOver) {
  harness.options.drain_rate = kMiB;
  harness.Restart();
  harness.RegisterOsts();
  client.Reconnect();
  Fill({0, 1}, 12, 2 * kMiB);
  const proto::RebalanceState first = Begin(500);
  client.StayFor(std::chrono::seconds(8));
  const proto::RebalanceState second = Begin(2500);
  EXPECT_EQ(second.run(), first.run());
  EXPECT_EQ(second.threshold(), 2500u);
  EXPECT_GT(second.moved_files(), 0u);
  const proto::RebalanceState ended = AwaitEnd();
  EXPECT_TRUE(ended.even());
  EXPECT_LE(ended.moved_files(), 12u);
  CheckFiles(ended.moved_files());
}

TEST_F(RebalancerTest, FilesThatAreWrittenAllTheTimeStayAndNobodyWaitsForThem) {
  for (const OstIndex ost : {2, 3}) EXPECT_THAT(Manage(ost, proto::ManageOst::DRAIN), IsOk());
  MakeFileOn({0}, 8 * kMiB);
  MakeFileOn({0}, 8 * kMiB);
  MakeFileOn({0}, 2 * kMiB);
  Settle();
  const proto::Layout busy[] = {LayoutOf(files[0]), LayoutOf(files[1])};
  harness.osts.on_call = [&](const std::string&, const proto::ObjectRequest& request) {
    for (const proto::Layout& layout : busy)
      if (request.has_write()) ++harness.osts.objects[0][{layout.object_sequence(), 0}].version;
    return OkStatus();
  };
  Begin();
  const Duration begun = harness.clock.Now();
  const proto::RebalanceState ended = AwaitEnd();
  harness.osts.on_call = nullptr;
  EXPECT_FALSE(ended.even());
  EXPECT_EQ(ended.stuck_files(), 2u) << ended.ShortDebugString();
  EXPECT_THAT(ended.problem(), HasSubstr("/f1"));
  EXPECT_THAT(ended.end(), HasSubstr("2 files could not be moved"));
  EXPECT_LT(harness.clock.Now() - begun, std::chrono::minutes(5));
  EXPECT_EQ(Used(0), 16 * kMiB);
  EXPECT_EQ(Used(1), 2 * kMiB);
  client.StayFor(std::chrono::seconds(5));
  EXPECT_EQ(Records(Table::kNewObjects), 0u);
  CheckFiles(1);
}

TEST_F(RebalancerTest, WhatAnOstRefusesIsTriedElsewhereOrSaid) {
  Fill({0}, 12, 2 * kMiB);
  for (const OstIndex ost : {1, 2, 3}) harness.osts.refuses[ost] = ENOSPC;
  Begin();
  client.StayFor(std::chrono::seconds(60));
  EXPECT_TRUE(State().running());
  EXPECT_GT(State().stuck_files(), 0u);
  EXPECT_THAT(State().problem(), HasSubstr("refused"));
  harness.osts.refuses.clear();
  EXPECT_TRUE(AwaitEnd().even());
  CheckFiles(9);
}

TEST_F(RebalancerTest, SaysWhatIsWrongAndHowEvenOstsAre) {
  for (const uint32_t threshold : {0u, 10'001u}) {
    EXPECT_THAT(Rebalance(proto::RebalanceOsts::START, threshold), Fails(EINVAL));
    EXPECT_THAT(Rebalance(proto::RebalanceOsts::LOOK, threshold), Fails(EINVAL));
  }
  Fill({0}, 12, 2 * kMiB);
  proto::RebalanceState look = Rebalance(proto::RebalanceOsts::LOOK).rebalance();
  EXPECT_FALSE(look.running());
  EXPECT_FALSE(look.even());
  ASSERT_EQ(look.classes_size(), 1);
  EXPECT_EQ(look.classes(0).osts(), 4u);
  EXPECT_EQ(look.classes(0).excess_bytes(), 18 * kMiB);
  EXPECT_FALSE(harness.Await(harness.server->GetStatus()).has_rebalance());
  look = Rebalance(proto::RebalanceOsts::LOOK, 4000).rebalance();
  EXPECT_TRUE(look.even());
  for (const OstIndex ost : {1, 2, 3}) EXPECT_THAT(Manage(ost, proto::ManageOst::DRAIN), IsOk());
  const proto::RebalanceState alone = Begin();
  EXPECT_FALSE(alone.running());
  EXPECT_TRUE(alone.even());
  EXPECT_EQ(alone.classes(0).osts(), 1u);
}

TEST_F(RebalancerTest, ADamagedRecordIsSaidAndReplaced) {
  Fill({0}, 12, 2 * kMiB);
  KvBatch batch;
  batch.Put(TableKey(Table::kRebalance), "x");
  ASSERT_TRUE(harness.Await(harness.store.Commit(std::move(batch))).ok());
  harness.Restart();
  harness.RegisterOsts();
  client.Reconnect(files);
  const proto::ClusterStatus status = harness.Await(harness.server->GetStatus());
  EXPECT_FALSE(status.rebalance().running());
  ASSERT_EQ(status.problems_size(), 1);
  EXPECT_THAT(status.problems(0), HasSubstr("nacre ost rebalance"));
  Begin();
  EXPECT_TRUE(AwaitEnd().even());
  CheckFiles(9);
}

}  // namespace
}  // namespace nacre::mds
