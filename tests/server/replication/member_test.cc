// Copies of the MDT in virtual time: what a member that dies, freezes, is cut off or loses power does to the
// others.
#include "server/replication/member.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

#include "tests/server/replication/member_fixture.h"

namespace nacre::replication {
namespace {

using testing::HasSubstr;

class MemberTest : public testing::Test {
 protected:
  void StartAll() {
    f.Start(0);
    ASSERT_TRUE(f.AwaitLeader(0));
    f.Start(1);
    f.Start(2);
    ASSERT_TRUE(f.AwaitInSync("0 1 2"));
  }
  void ExpectPut(int i, std::string key, std::string value) {
    const std::optional<Status> status = f.Put(i, std::move(key), std::move(value));
    ASSERT_TRUE(status.has_value()) << "it waits for ever";
    ASSERT_TRUE(status->ok()) << *status;
  }
  void ExpectEqual(const std::string& content) {
    for (int i = 0; i < 3; ++i) EXPECT_EQ(f.Content(i), content) << i;
  }
  uint64_t EpochOf(int i) const { return (*f.machines[i].primacy)->epoch; }
  std::string BootOf(int i) const { return (*f.machines[i].primacy)->boot; }

  MemberFixture f;
};

TEST_F(MemberTest, OthersGetEverythingAndEachCommit) {
  f.Start(0);
  ASSERT_TRUE(f.AwaitLeader(0));
  ExpectPut(0, "before", "1");
  f.Start(1);
  f.Start(2);
  ASSERT_TRUE(f.AwaitInSync("0 1 2"));
  ExpectPut(0, "after", "2");
  ExpectEqual("after=2 before=1 ");
  EXPECT_EQ(f.machines[0].member->store().Get("after").value(), "2");
}

TEST_F(MemberTest, TheRecordsOfTheCopiesDoNotShow) {
  StartAll();
  ExpectPut(0, "k", "v");
  KvStore& store = f.machines[0].member->store();
  EXPECT_EQ(store.Scan({}, {}, 100)->size(), 1u);
  EXPECT_EQ(store.Last({}, {})->key, "k");
  auto snapshot = store.Snapshot();
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  EXPECT_EQ((*snapshot)->Read("", 1000)->size(), 1u);
  EXPECT_EQ((*snapshot)->Read("l", 1000)->size(), 0u);
}

TEST_F(MemberTest, ABlankMemberFormsNothing) {
  f.Start(1);
  f.world.RunFor(1min);
  EXPECT_FALSE(f.machines[1].primacy.has_value());
  EXPECT_EQ(f.InSync(), "");
}

TEST_F(MemberTest, AMemberThatDiesIsLeftOutBeforeAnythingIsAcknowledged) {
  StartAll();
  f.Kill(1);
  ExpectPut(0, "k", "v");
  EXPECT_EQ(f.InSync(), "0 2");
  EXPECT_EQ(f.Get(2, "k"), "v");
  f.Start(1);
  ASSERT_TRUE(f.AwaitInSync("0 1 2"));
  ExpectEqual("k=v ");
}

TEST_F(MemberTest, AFrozenMemberHoldsCommitsUpForASecondOrTwo) {
  StartAll();
  f.Freeze(2, true);
  const Duration begin = f.world.clock().Now();
  ExpectPut(0, "k", "v");
  EXPECT_LT(f.world.clock().Now() - begin, 3s);
  EXPECT_EQ(f.InSync(), "0 1");
  EXPECT_TRUE(f.machines[0].member->MayServe());
  f.Freeze(2, false);
  ASSERT_TRUE(f.AwaitInSync("0 1 2"));
  ExpectEqual("k=v ");
}

TEST_F(MemberTest, WithoutTheCoordinatorNobodyIsLeftOut) {
  StartAll();
  f.etcd.Cut("mds0");
  ExpectPut(0, "k", "v");  // it is not asked for that
  f.Kill(1);
  EXPECT_FALSE(f.Put(0, "l", "w", 20s).has_value());
  EXPECT_FALSE(f.machines[0].member->MayServe()) << "the other two may have a primary";
  f.HealAll();
  // Either the commit goes on, or another one has become primary meanwhile.
  ASSERT_TRUE(f.RunUntil([&] { return f.Leader() >= 0; }));
  const int leader = f.Leader();
  ExpectPut(leader, "m", "x");
  EXPECT_EQ(f.Get(leader, "k"), "v");
}

TEST_F(MemberTest, AnotherTakesOverWithEverythingAcknowledged) {
  StartAll();
  for (int i = 0; i < 20; ++i) ExpectPut(0, absl::StrCat("k", i), "v");
  const std::string content = f.Content(0);
  const std::string boot = BootOf(0);
  f.Kill(0);
  const Duration begin = f.world.clock().Now();
  ASSERT_TRUE(f.RunUntil([&] { return f.Leader() > 0; }));
  EXPECT_LT(f.world.clock().Now() - begin, 4s);
  const int leader = f.Leader();
  EXPECT_EQ(f.Content(leader), content);
  EXPECT_EQ(EpochOf(leader), 2u);
  EXPECT_EQ(BootOf(leader), boot) << "nothing was lost";
  f.Start(0);
  ASSERT_TRUE(f.AwaitInSync("0 1 2"));
  ExpectEqual(content);
  EXPECT_FALSE(f.Leads(0));
}

TEST_F(MemberTest, APrimaryThatIsCutOffStopsBeforeAnotherBegins) {
  StartAll();
  f.CutOff(0);
  bool both = false;
  ASSERT_TRUE(f.RunUntil([&] {
    int serving = 0;
    for (int i = 0; i < 3; ++i) serving += f.Leads(i) && f.machines[i].member->MayServe();
    both = both || serving > 1;
    return f.Leader() > 0;
  }));
  EXPECT_FALSE(both);
  EXPECT_FALSE(f.Put(0, "lost", "1", 10s).has_value());
  const int leader = f.Leader();
  ExpectPut(leader, "k", "v");
  f.HealAll();
  ASSERT_TRUE(f.RunUntil([&] { return f.machines[0].end.has_value(); })) << "it learns of it";
  f.Kill(0);
  f.Start(0);
  ASSERT_TRUE(f.AwaitInSync("0 1 2"));
  ExpectEqual("k=v ");
}

TEST_F(MemberTest, AFrozenPrimaryThatWakesServesNobody) {
  StartAll();
  f.Freeze(0, true);
  ASSERT_TRUE(f.RunUntil([&] { return f.Leads(1) || f.Leads(2); }));
  f.Freeze(0, false);
  EXPECT_FALSE(f.machines[0].member->MayServe());
  const auto status = f.Put(0, "lost", "1");
  ASSERT_TRUE(status.has_value());
  EXPECT_FALSE(status->ok());
  EXPECT_TRUE(f.machines[0].end.has_value());
}

// It was told of a change that the next primary had not: what it has is not a part of the history.
TEST_F(MemberTest, WhoIsAheadIsSetBack) {
  StartAll();
  f.Cut(0, 1);
  f.etcd.Cut("mds0");
  EXPECT_FALSE(f.Put(0, "half", "1", 500ms).has_value());
  EXPECT_EQ(f.Get(2, "half"), "1");
  EXPECT_EQ(f.Get(0, "half"), "") << "nobody has read it";
  f.Kill(0);
  f.Freeze(2, true);
  ASSERT_TRUE(f.AwaitLeader(1));
  ExpectPut(1, "k", "v");
  f.Kill(2);
  f.HealAll();
  f.Start(0);
  f.Start(2);
  ASSERT_TRUE(f.AwaitInSync("0 1 2"));
  ExpectEqual("k=v ");
}

TEST_F(MemberTest, AMemberThatLostPowerIsNotPrimaryWhileAnotherHasMore) {
  StartAll();
  ExpectPut(0, "k", "v");
  f.Kill(0);
  f.LosePower(1);
  f.Start(1);
  ASSERT_TRUE(f.AwaitLeader(2));
  EXPECT_EQ(f.Get(2, "k"), "v");
  ASSERT_TRUE(f.AwaitInSync("1 2"));
  EXPECT_EQ(f.Get(1, "k"), "v");
  EXPECT_THAT(BootOf(2), HasSubstr(", 0")) << "nothing was lost";
}

// A member that lost power and came back with all it had knows so at once, also while the coordinator cannot
// take it out of the set: the next loss of power, of the others, is none of data.
TEST_F(MemberTest, AMemberThatComesBackWithEverythingIsToldSo) {
  StartAll();
  ExpectPut(0, "k", "v");
  f.etcd.LoseLeader(3s);
  f.Kill(1);
  ++f.machines[1].boots;
  f.Start(1);
  f.world.RunFor(900ms);
  f.LosePower(0);
  f.LosePower(2);
  f.Start(0);
  f.Start(2);
  ASSERT_TRUE(f.AwaitLeader(1));
  EXPECT_EQ(f.Get(1, "k"), "v");
  EXPECT_THAT(BootOf(1), HasSubstr(", 0")) << "nothing was lost";
}

TEST_F(MemberTest, WhenAllLosePowerTheOneWithMostGoesOn) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    MemberFixture g(seed);
    g.Start(0);
    ASSERT_TRUE(g.AwaitLeader(0));
    g.Start(1);
    g.Start(2);
    ASSERT_TRUE(g.AwaitInSync("0 1 2"));
    for (int i = 0; i < 10; ++i) ASSERT_TRUE(g.Put(0, absl::StrCat("k", i), "v")->ok());
    size_t most = 0;
    for (int i = 0; i < 3; ++i) g.LosePower(i);
    for (int i = 0; i < 3; ++i) most = std::max(most, g.Content(i).size());
    g.Start(0);
    g.Start(1);
    g.world.RunFor(10s);
    EXPECT_EQ(g.Leader(), -1) << "the third may have more";
    g.Start(2);
    ASSERT_TRUE(g.RunUntil([&] { return g.Leader() >= 0; })) << seed;
    ASSERT_TRUE(g.AwaitInSync("0 1 2")) << seed;
    const int leader = g.Leader();
    EXPECT_EQ(g.Content(leader).size(), most);
    EXPECT_THAT((*g.machines[leader].primacy)->boot, HasSubstr(", 1")) << "clients have to know";
  }
}

TEST_F(MemberTest, AnOrderlyEndLosesNothingWhateverBootFollows) {
  StartAll();
  ExpectPut(0, "k", "v");
  f.Stop(0);
  const Duration begin = f.world.clock().Now();
  ASSERT_TRUE(f.RunUntil([&] { return f.Leader() > 0; }));
  EXPECT_LT(f.world.clock().Now() - begin, 1s) << "nobody waits for promises that are void";
  const int second = f.Leader(), third = 3 - second;
  f.Stop(third);
  f.Stop(second);
  for (auto& machine : f.machines) ++machine.boots;
  for (int i = 0; i < 3; ++i) f.Start(i);
  ASSERT_TRUE(f.RunUntil([&] { return f.Leader() >= 0; }));
  ASSERT_TRUE(f.AwaitInSync("0 1 2"));
  EXPECT_THAT(BootOf(f.Leader()), HasSubstr(", 0"));
  ExpectEqual("k=v ");
}

TEST_F(MemberTest, AReplacedDiskIsFilled) {
  StartAll();
  for (int i = 0; i < 50; ++i) ExpectPut(0, absl::StrCat("k", i), std::string(100, 'v'));
  f.Kill(2);
  f.Wipe(2);
  f.Start(2);
  ASSERT_TRUE(f.AwaitInSync("0 1 2"));
  ASSERT_TRUE(f.RunUntil([&] { return f.Content(2) == f.Content(0); }));
}

// The last one of the set loses its disk: nobody may take the empty one for the filesystem.
TEST_F(MemberTest, AnEmptyDiskIsNeverPrimary) {
  f.Start(0);
  ASSERT_TRUE(f.AwaitLeader(0));
  ExpectPut(0, "k", "v");
  f.Kill(0);
  f.machines[0].disk = std::make_unique<MemKv>();
  f.Start(0);
  f.world.RunFor(1min);
  EXPECT_FALSE(f.Leads(0));
}

TEST_F(MemberTest, AnMdtOfAnotherFilesystemIsRefused) {
  StartAll();
  f.Kill(2);
  f.machines[2].disk = std::make_unique<MemKv>();
  KvBatch batch;
  batch.Put("mine", "1");
  bool done = false;
  Spawn(f.etcd_process->executor(), f.machines[2].disk->Commit(std::move(batch)),
        [&](Status) { done = true; });
  ASSERT_TRUE(f.RunUntil([&] { return done; }));
  f.Start(2);
  ASSERT_TRUE(f.RunUntil([&] { return f.machines[2].primacy.has_value(); }));
  EXPECT_THAT(std::string(f.machines[2].primacy->status().message()), HasSubstr("--format --copy"));
  f.world.RunFor(20s);
  EXPECT_EQ(f.Get(2, "mine"), "1") << "and left alone";
}

TEST_F(MemberTest, AFullStoreRefusesBeforeAnybodyIsTold) {
  StartAll();
  f.machines[0].disk->SetCommitHook(
      [](const KvBatch& batch) { return batch.uses_reserve() ? OkStatus() : ErrnoError(ENOSPC, "full"); });
  const auto status = f.Put(0, "k", "v");
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(ToErrno(*status), ENOSPC);
  f.machines[0].disk->SetCommitHook(nullptr);
  ExpectPut(0, "l", "w");
  ExpectEqual("l=w ");
}

TEST_F(MemberTest, AMemberThatWasAwayGetsWhatItLacks) {
  StartAll();
  f.Kill(2);
  for (int i = 0; i < 100; ++i) ExpectPut(0, absl::StrCat("k", i), "v");
  f.Start(2);
  ASSERT_TRUE(f.AwaitInSync("0 1 2"));
  ASSERT_TRUE(f.RunUntil([&] { return f.Content(2) == f.Content(0); }));
  // The same after a takeover, with a primary that was a follower then.
  f.Kill(2);
  for (int i = 0; i < 100; ++i) ExpectPut(0, absl::StrCat("l", i), "v");
  f.Kill(0);
  ASSERT_TRUE(f.AwaitLeader(1));
  f.Start(2);
  ASSERT_TRUE(f.AwaitInSync("1 2"));
  EXPECT_EQ(f.Content(2), f.Content(1));
}

// A primary that is alone makes changes quicker than a request to another member takes.
TEST_F(MemberTest, AMemberComesBackUnderConstantLoad) {
  StartAll();
  f.Kill(1);
  f.Kill(2);
  ExpectPut(0, "k", "v");
  ASSERT_TRUE(f.AwaitInSync("0"));
  bool enough = false;
  auto load = [](KvStore* store, Clock* clock, const bool* enough) -> Task<void> {
    for (int i = 0; !*enough; ++i) {
      KvBatch batch;
      batch.Put(absl::StrCat("load", i % 100), absl::StrCat(i));
      (void)co_await store->Commit(std::move(batch));
      co_await clock->Sleep(50us);
    }
  };
  sim::Process& process = *f.machines[0].process;
  Spawn(process.executor(), load(&f.machines[0].member->store(), &process.clock(), &enough));
  f.Start(2);
  EXPECT_TRUE(f.AwaitInSync("0 2"));
  enough = true;
  EXPECT_TRUE(f.RunUntil([&] { return f.Content(2) == f.Content(0); }));
}

// --- changes under way (docs/decisions/0067-changes-under-way.md) ---

// A hundred changes, none of which waits for another one; true when all have returned.
bool ChangeMuch(MemberFixture& f, int i, const std::string& name, int* returned) {
  auto change = [](KvStore* store, std::string name, int* returned) -> Task<void> {
    for (int number = 0; number < 100; ++number) {
      KvBatch batch;
      batch.Put(absl::StrFormat("%s%02d", name, number), "v");
      const Status status = co_await store->Commit(std::move(batch));
      if (status.ok()) ++*returned;
    }
  };
  Spawn(f.machines[i].process->executor(), change(&f.machines[i].member->store(), name, returned));
  return f.RunUntil([returned] { return *returned == 100; }, 1ms);
}

// It serves on, so nobody else would say so before the next failure.
TEST_F(MemberTest, APrimaryWhoseCoordinatorIsSilentSaysSo) {
  StartAll();
  f.world.RunFor(2s);
  EXPECT_EQ(f.machines[0].member->Problem(), "");
  f.etcd.Cut("mds0");
  f.world.RunFor(5s);
  EXPECT_EQ(f.machines[0].member->Problem(), "") << "that may be over in a moment";
  f.world.RunFor(30s);
  EXPECT_TRUE(f.machines[0].member->MayServe());
  EXPECT_THAT(f.machines[0].member->Problem(), testing::HasSubstr("etcd has not answered"));
  f.HealAll();
  ASSERT_TRUE(f.RunUntil([&] { return f.machines[0].member->Problem().empty(); }));
}

TEST_F(MemberTest, ACommitShowsAtOnceAndIsInNoStoreBeforeTheOthersHaveIt) {
  StartAll();
  int returned = 0;
  const uint64_t groups = f.machines[0].member->Describe().sequence();
  f.Cut(0, 1);
  f.etcd.Cut("mds0");
  ASSERT_TRUE(ChangeMuch(f, 0, "k", &returned));
  f.world.RunFor(500ms);
  KvStore& store = f.machines[0].member->store();
  EXPECT_EQ(store.Get("k99").value(), "v");
  EXPECT_EQ(store.Scan("k", "l", 1000)->size(), 100u);
  EXPECT_EQ(f.Content(0), "");
  EXPECT_TRUE((*store.Snapshot())->Read("", 1000)->empty()) << "a backup has what all have";
  EXPECT_EQ(f.machines[0].member->Describe().sequence(), groups);
  f.HealAll();
  ASSERT_TRUE(f.RunUntil([&] { return f.Content(0).size() == 600; }));
  EXPECT_LE(f.machines[0].member->Describe().sequence(), groups + 2) << "what meets is one group";
  ASSERT_TRUE(f.AwaitInSync("0 1 2"));
  ASSERT_TRUE(f.RunUntil([&] { return f.Content(1) == f.Content(0); }));
  EXPECT_EQ(f.Content(2), f.Content(0));
}

// The next primary has the changes that were under way up to one of them, and none behind it.
TEST_F(MemberTest, ATakeoverFindsABeginningOfWhatWasUnderWay) {
  int cut_short = 0;
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    MemberFixture g(seed);
    g.Start(0);
    ASSERT_TRUE(g.AwaitLeader(0));
    g.Start(1);
    g.Start(2);
    ASSERT_TRUE(g.AwaitInSync("0 1 2"));
    int returned = 0, more = 0;
    uint64_t kept = 0;
    ASSERT_TRUE(ChangeMuch(g, 0, "k", &returned));
    g.machines[0].member->WhenKept([&](bool yes) { kept = yes ? 100 : 0; });
    g.world.RunFor(std::chrono::microseconds(100 * seed));
    ASSERT_TRUE(ChangeMuch(g, 0, "l", &more));
    g.machines[0].member->WhenKept([](bool) {});
    g.world.RunFor(std::chrono::microseconds(37 * seed));
    g.Kill(0);
    ASSERT_TRUE(g.RunUntil([&] { return g.Leader() > 0; }));
    const std::string content = g.Content(g.Leader());
    const uint64_t count = content.size() / std::string("k00=v ").size();
    EXPECT_GE(count, kept) << "seed " << seed;
    std::string expected;
    for (uint64_t i = 0; i < count; ++i)
      absl::StrAppendFormat(&expected, "%c%02d=v ", i < 100 ? 'k' : 'l', i % 100);
    EXPECT_EQ(content, expected) << "seed " << seed;
    cut_short += count < 200;
    g.Start(0);
    ASSERT_TRUE(g.AwaitInSync("0 1 2"));
    ASSERT_TRUE(g.RunUntil([&] { return g.Content(0) == content && g.Content(3 - g.Leader()) == content; }));
  }
  EXPECT_GT(cut_short, 0) << "some takeovers find less than was changed";
  EXPECT_LT(cut_short, 30);
}

TEST_F(MemberTest, ASyncWaitsForWhatIsUnderWay) {
  StartAll();
  f.Freeze(1, true);
  int returned = 0;
  ASSERT_TRUE(ChangeMuch(f, 0, "k", &returned));
  std::optional<Status> synced;
  auto sync = [](KvStore* store) -> Task<Status> { co_return co_await store->Sync(); };
  Spawn(f.machines[0].process->executor(), sync(&f.machines[0].member->store()),
        [&](Status status) { synced = std::move(status); });
  f.world.RunFor(500ms);
  EXPECT_FALSE(synced.has_value());
  ASSERT_TRUE(f.RunUntil([&] { return synced.has_value(); })) << "the frozen one is left out";
  EXPECT_TRUE(synced->ok()) << *synced;
  EXPECT_EQ(f.Content(0).size(), 600u);
  f.LosePower(0);
  f.LosePower(2);
  EXPECT_EQ(f.Content(0).size(), 600u);
  EXPECT_EQ(f.Content(2).size(), 600u);
}

// A store that was refused does not know what the others have been told: there is nothing to be taken back.
TEST_F(MemberTest, AFullStoreRefusesInTheMiddleOfAPipeline) {
  StartAll();
  f.Freeze(1, true);
  int returned = 0;
  ASSERT_TRUE(ChangeMuch(f, 0, "k", &returned));
  f.machines[0].disk->SetCommitHook(
      [](const KvBatch& batch) { return batch.uses_reserve() ? OkStatus() : ErrnoError(ENOSPC, "full"); });
  int refused = 0;
  EXPECT_FALSE(ChangeMuch(f, 0, "l", &refused));
  EXPECT_EQ(refused, 0);
  f.machines[0].disk->SetCommitHook(nullptr);
  ExpectPut(0, "m", "v");
  EXPECT_EQ(f.Content(0).size(), 604u) << "k00 to k99, and m";
  EXPECT_EQ(f.Content(2), f.Content(0));
}

TEST_F(MemberTest, NothingLeavesADeposedPrimaryThatDependsOnWhatTheOthersLack) {
  StartAll();
  f.CutOff(0);
  int returned = 0;
  ASSERT_TRUE(ChangeMuch(f, 0, "k", &returned));
  std::optional<bool> kept;
  f.machines[0].member->WhenKept([&](bool yes) { kept = yes; });
  ASSERT_TRUE(f.RunUntil([&] { return f.Leader() > 0; }));
  EXPECT_FALSE(kept.has_value());
  ExpectPut(f.Leader(), "other", "1");
  f.HealAll();
  ASSERT_TRUE(f.RunUntil([&] { return f.machines[0].end.has_value(); }));
  ASSERT_TRUE(f.RunUntil([&] { return kept.has_value(); }));
  EXPECT_FALSE(*kept);
  f.Kill(0);
  f.Start(0);
  ASSERT_TRUE(f.AwaitInSync("0 1 2"));
  ExpectEqual("other=1 ");
}

}  // namespace
}  // namespace nacre::replication
