// The coordinator over real members that die, freeze, forget and refuse.
#include "server/coordination/etcd_coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "common/runtime.h"
#include "tests/server/coordination/etcd_cluster.h"
#include "tests/server/coordination/history.h"
#include "tests/server/coordination/tcp_proxy.h"

namespace nacre::coordination {
namespace {

using testing::HasSubstr;

constexpr Duration kLong = 20s;

class EtcdTest : public testing::Test {
 protected:
  void SetUp() override { NACRE_NEEDS_ETCD(); }

  std::unique_ptr<Coordinator> Connect(EtcdOptions options) {
    StatusOr<std::unique_ptr<Coordinator>> coordinator = NewEtcdCoordinator(options);
    EXPECT_TRUE(coordinator.ok()) << coordinator.status();
    return *std::move(coordinator);
  }
  std::unique_ptr<Coordinator> Connect(std::vector<std::string> endpoints) {
    EtcdOptions options;
    options.endpoints = std::move(endpoints);
    return Connect(std::move(options));
  }

  // A new one, after each member has answered: so the first is the one that it asks.
  std::unique_ptr<Coordinator> ConnectToFirst(const std::vector<std::string>& endpoints) {
    for (const std::string& endpoint : endpoints) {
      const std::unique_ptr<Coordinator> one = Connect(std::vector<std::string>{endpoint});
      EXPECT_TRUE(Get(*one, "a").ok());
    }
    return Connect(endpoints);
  }

  StatusOr<Entry> Get(Coordinator& coordinator, const std::string& key, Duration timeout = kLong) {
    return runtime_.Run(coordinator.Get(key, timeout));
  }
  StatusOr<Outcome> Set(Coordinator& coordinator, const std::string& key, const std::string& value,
                        Duration timeout = kLong) {
    return runtime_.Run(coordinator.Transact({{}, {{key, value}}, {}}, timeout));
  }
  // The first hint that is not kQuiet, or an error, within this time.
  StatusOr<Hint> NextHint(Watch& watch, Duration timeout = kLong) {
    const Duration end = RealClock().Now() + timeout;
    StatusOr<Hint> hint = Hint::kQuiet;
    while (hint.ok() && *hint == Hint::kQuiet && RealClock().Now() < end) {
      hint = runtime_.Run(watch.Next(end - RealClock().Now()));
    }
    return hint;
  }

  Runtime runtime_{1};
};

struct Writers {
  History history{"tokens"};
  bool enough = false;
  int running = 0;
  OneShot<Unit> ended;
};

// Writers that go on until they are told to end.
void StartWriters(Runtime& runtime, Coordinator& coordinator, Writers& writers, int count, Duration timeout) {
  writers.running = count;
  for (int i = 0; i < count; ++i) {
    Spawn(runtime.executor(),
          writers.history.Write(&coordinator, &RealClock(), absl::StrCat("w", i), timeout,
                                [&writers] { return writers.enough; }),
          [&writers] {
            if (--writers.running == 0) writers.ended.Set({});
          });
  }
}

// On the writers' executor, where their history is safe.
Task<bool> SucceedsAgain(History* history, int times, Duration timeout) {
  const Duration begin = RealClock().Now();
  const int before = history->successes();
  while (RealClock().Now() - begin < timeout) {
    if (history->successes() >= before + times) co_return true;
    co_await RealClock().Sleep(5ms);
  }
  co_return false;
}

Task<bool> EndWriters(Writers* writers) {
  writers->enough = true;
  OneShot<Unit> ended = writers->ended;
  co_await ended.Wait();
  co_return true;
}

TEST_F(EtcdTest, NothingIsLostOrDoneTwiceWhenTheLeaderIsKilled) {
  EtcdCluster cluster({.members = 3});
  const auto coordinator = Connect(cluster.endpoints());
  ASSERT_TRUE(Set(*coordinator, "ready", "x").ok());
  Writers writers;
  StartWriters(runtime_, *coordinator, writers, 4, 1s);
  Duration longest = 0ns;
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(runtime_.Run(SucceedsAgain(&writers.history, 50, kLong)));
    int leader = -1;
    for (int i = 0; i < 50 && leader < 0; ++i) leader = cluster.Leader();
    ASSERT_GE(leader, 0);
    const Duration begin = RealClock().Now();
    cluster.Kill(leader);
    ASSERT_TRUE(runtime_.Run(SucceedsAgain(&writers.history, 1, kLong)))
        << "nothing after the leader's death";
    longest = std::max(longest, RealClock().Now() - begin);
    cluster.Start(leader);
  }
  runtime_.Run(EndWriters(&writers));
  const StatusOr<Entry> tokens = Get(*coordinator, "tokens");
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_EQ(writers.history.Judge(tokens->value), "");
  EXPECT_GT(writers.history.successes(), 150);
  std::printf(
      "%d transactions, %d of unknown end, of which %d were carried out; again after %.2f s at most\n",
      writers.history.successes(), writers.history.unknown(), writers.history.Untold(tokens->value),
      std::chrono::duration<double>(longest).count());
}

// The answer is lost, and then the connection: it looks like a request that did not get there.
TEST_F(EtcdTest, ATransactionWhoseAnswerIsLostIsNotRepeated) {
  EtcdCluster cluster({.members = 1});
  const auto direct = Connect(cluster.endpoints());
  ASSERT_TRUE(Get(*direct, "a").ok());
  int rounds = 0;
  for (int round = 0; round < 5; ++round) {
    TcpProxy proxy(cluster.endpoints()[0]);
    const auto coordinator = Connect(std::vector<std::string>{proxy.address()});
    const std::string key = absl::StrCat("a", round);
    ASSERT_TRUE(Get(*coordinator, key).ok());
    std::promise<StatusOr<Outcome>> promise;
    std::future<StatusOr<Outcome>> future = promise.get_future();
    // Directly behind the reading, so that nothing else has to be asked first.
    proxy.LoseAnswers();
    Spawn(runtime_.executor(), coordinator->Transact({{{key, 0}}, {{key, "once"}}, {}}, kLong),
          [&promise](StatusOr<Outcome> outcome) { promise.set_value(std::move(outcome)); });
    for (int i = 0; i < 1000 && !Get(*direct, key)->exists(); ++i) continue;
    const bool carried_out = Get(*direct, key)->exists();
    proxy.BreakConnections();
    const StatusOr<Outcome> outcome = future.get();
    if (!carried_out) continue;  // on a machine so busy that the member was asked first whether it is there
    ++rounds;
    EXPECT_TRUE(absl::IsUnavailable(outcome.status())) << (outcome.ok() ? "it has an outcome" : "");
    EXPECT_EQ(Get(*coordinator, key)->value, "once");
  }
  EXPECT_GT(rounds, 0);
}

// A network that has become silent, as where a cable is drawn: no end of the connection is seen.
TEST_F(EtcdTest, ASilentNetworkIsLeftByReadingsAndWatches) {
  EtcdCluster cluster({.members = 3});
  const auto ready = ConnectToFirst(cluster.endpoints());
  TcpProxy proxy(cluster.endpoints()[0]);
  const auto coordinator = Connect({proxy.address(), cluster.endpoints()[1]});
  const StatusOr<Outcome> outcome = Set(*coordinator, "w/a", "1");
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  const auto watch = coordinator->NewWatch("w/", outcome->revision);
  EXPECT_EQ(*runtime_.Run(watch->Next(100ms)), Hint::kQuiet);
  proxy.LoseAnswers();
  ASSERT_TRUE(Set(*ready, "w/a", "2").ok());
  const Duration begin = RealClock().Now();
  EXPECT_EQ(Get(*coordinator, "w/a")->value, "2");
  EXPECT_LT(RealClock().Now() - begin, 5s);
  EXPECT_EQ(*NextHint(*watch), Hint::kGap);
  EXPECT_LT(RealClock().Now() - begin, 15s);
  EXPECT_EQ(Set(*coordinator, "w/a", "3")->present, std::vector<Entry>());
}

TEST_F(EtcdTest, AFrozenLeaderKeepsNobodyForLong) {
  EtcdCluster cluster({.members = 3});
  const auto coordinator = Connect(cluster.endpoints());
  ASSERT_TRUE(Set(*coordinator, "a", "1").ok());
  const int leader = cluster.Leader();
  ASSERT_GE(leader, 0);
  cluster.Freeze(leader);
  EXPECT_EQ(Get(*coordinator, "a")->value, "1");
  // One may be asked of the frozen member; who reads afterwards is with another one.
  StatusOr<Outcome> outcome = Set(*coordinator, "a", "2", 2s);
  if (!outcome.ok()) {
    EXPECT_TRUE(absl::IsUnavailable(outcome.status())) << outcome.status();
    EXPECT_TRUE(Get(*coordinator, "a").ok());
    outcome = Set(*coordinator, "a", "2");
  }
  EXPECT_TRUE(outcome.ok()) << outcome.status();
  cluster.Thaw(leader);
  EXPECT_EQ(Get(*coordinator, "a")->value, "2");
}

TEST_F(EtcdTest, AReadingAtAnyMemberShowsWhatWasDoneBefore) {
  EtcdCluster cluster({.members = 3});
  std::vector<std::unique_ptr<Coordinator>> members;
  for (const std::string& endpoint : cluster.endpoints()) {
    members.push_back(Connect(std::vector<std::string>{endpoint}));
    ASSERT_TRUE(Get(*members.back(), "a").ok());
  }
  for (size_t i = 0; i < 60; ++i) {
    const StatusOr<Outcome> outcome = Set(*members[i % 3], "a", absl::StrCat(i));
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    for (const auto& member : members) {
      const StatusOr<Entry> entry = Get(*member, "a");
      ASSERT_TRUE(entry.ok()) << entry.status();
      ASSERT_EQ(entry->mod_revision, outcome->revision) << "round " << i;
    }
  }
}

TEST_F(EtcdTest, MembersThatAreNotThereAreGoneRound) {
  EtcdCluster cluster({.members = 1}), dead({.members = 1});
  dead.Kill(0);
  const auto coordinator = Connect({dead.endpoints()[0], cluster.endpoints()[0]});
  // Nothing is sent to a member that is not connected: its end is known.
  const StatusOr<Outcome> outcome = Set(*coordinator, "a", "1");
  EXPECT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(Get(*coordinator, "a")->value, "1");
}

TEST_F(EtcdTest, NobodyThereIsSaidInTime) {
  EtcdCluster cluster({.members = 1});
  cluster.Kill(0);
  const auto coordinator = Connect(cluster.endpoints());
  const Duration begin = RealClock().Now();
  const Status reading = Get(*coordinator, "a", 1s).status();
  const Status writing = Set(*coordinator, "a", "1", 1s).status();
  const auto watch = coordinator->NewWatch("a", 0);
  const Status watching = runtime_.Run(watch->Next(1s)).status();
  EXPECT_LT(RealClock().Now() - begin, 6s);
  for (const Status& status : {reading, writing, watching}) {
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(cluster.endpoints()[0]));
    EXPECT_THAT(std::string(status.message()), HasSubstr("check that it runs there"));
  }
  cluster.Start(0);
  EXPECT_TRUE(Set(*coordinator, "a", "1").ok());
}

TEST_F(EtcdTest, WithoutAMajorityNothingIsDecidedAndAfterwardsAllIs) {
  EtcdCluster cluster({.members = 3});
  const auto coordinator = Connect(cluster.endpoints());
  ASSERT_TRUE(Set(*coordinator, "a", "1").ok());
  cluster.Kill(0);
  cluster.Kill(1);
  EXPECT_TRUE(absl::IsUnavailable(Get(*coordinator, "a", 2s).status()));
  EXPECT_TRUE(absl::IsUnavailable(Set(*coordinator, "b", "1", 2s).status()));
  cluster.Start(0);
  EXPECT_EQ(Get(*coordinator, "a")->value, "1");
}

TEST_F(EtcdTest, AWatchGoesOnAtAnotherMemberAndTellsOfTheGap) {
  EtcdCluster cluster({.members = 3});
  const auto coordinator = ConnectToFirst(cluster.endpoints());
  const int64_t revision = Set(*coordinator, "w/a", "1")->revision;
  const auto watch = coordinator->NewWatch("w/", revision);
  EXPECT_EQ(*runtime_.Run(watch->Next(100ms)), Hint::kQuiet);
  cluster.Kill(0);
  EXPECT_EQ(*NextHint(*watch), Hint::kGap);
  // Where the first was the leader the others may end the watch once more, for want of one.
  StatusOr<Hint> hint = Hint::kGap;
  for (int i = 0; i < 20 && hint.ok() && *hint == Hint::kGap; ++i) {
    const StatusOr<Outcome> outcome = Set(*coordinator, "w/a", "2");
    EXPECT_TRUE(outcome.ok() || absl::IsUnavailable(outcome.status())) << outcome.status();
    hint = NextHint(*watch);
  }
  ASSERT_TRUE(hint.ok()) << hint.status();
  EXPECT_EQ(*hint, Hint::kChanged);
}

TEST_F(EtcdTest, AWatchLeavesAMemberThatIsSilent) {
  EtcdCluster cluster({.members = 3});
  const auto coordinator = ConnectToFirst(cluster.endpoints());
  const auto watch = coordinator->NewWatch("w/", 0);
  // A member that is there answers when it is asked: no gap, however long nothing happens.
  EXPECT_EQ(*runtime_.Run(watch->Next(6s)), Hint::kQuiet);
  cluster.Freeze(0);
  EXPECT_EQ(*NextHint(*watch), Hint::kGap);
  cluster.Thaw(0);
}

TEST_F(EtcdTest, AWatchOfRevisionsThatAreGoneHasAGap) {
  EtcdCluster cluster({.members = 1});
  const auto coordinator = Connect(cluster.endpoints());
  const int64_t first = Set(*coordinator, "a", "1")->revision;
  for (const char* value : {"2", "3", "4"}) ASSERT_TRUE(Set(*coordinator, "a", value).ok());
  const int64_t last = Get(*coordinator, "a")->mod_revision;
  const StatusOr<std::string> compacted = cluster.Ctl({"compact", absl::StrCat(last)});
  ASSERT_TRUE(compacted.ok()) << compacted.status();
  const auto watch = coordinator->NewWatch("a", first);
  EXPECT_EQ(*NextHint(*watch), Hint::kGap);
  EXPECT_EQ(*runtime_.Run(watch->Next(200ms)), Hint::kQuiet);
  EXPECT_EQ(Get(*coordinator, "a")->value, "4");
  ASSERT_TRUE(Set(*coordinator, "a", "5").ok());
  EXPECT_EQ(*NextHint(*watch), Hint::kChanged);
}

TEST_F(EtcdTest, MembersOfTwoClustersAreRefused) {
  EtcdCluster one({.members = 1}), other({.members = 1});
  const auto coordinator = ConnectToFirst({one.endpoints()[0], other.endpoints()[0]});
  ASSERT_TRUE(Set(*coordinator, "a", "1").ok());
  one.Kill(0);
  Status status = Get(*coordinator, "a").status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("must be members of one cluster"));
  // The other cluster has carried the transaction out, so its outcome counts as unknown; the error says why.
  status = Set(*coordinator, "a", "2").status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("must be members of one cluster"));
}

TEST_F(EtcdTest, AnEtcdThatWasSetBackIsRefused) {
  EtcdCluster cluster({.members = 1});
  const auto coordinator = Connect(cluster.endpoints());
  for (const char* value : {"1", "2", "3"}) ASSERT_TRUE(Set(*coordinator, "a", value).ok());
  cluster.Kill(0);
  cluster.Wipe(0);
  cluster.Start(0);
  const Status status = Get(*coordinator, "a").status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("set back to an earlier state"));
}

// "database space exceeded" may be told of a transaction that was carried out.
TEST_F(EtcdTest, WhatAFullEtcdSaysIsNoRefusal) {
  EtcdCluster cluster({.members = 1, .arguments = {"--quota-backend-bytes", "1000000"}});
  const auto coordinator = Connect(cluster.endpoints());
  const std::string large(300'000, 'x');
  Status status;
  std::string last;
  // It looks at the size of its file ten times a second.
  for (int i = 0; i < 400 && status.ok(); ++i) {
    last = absl::StrCat("k", i);
    status = Set(*coordinator, last, large).status();
  }
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("database space exceeded"));
  EXPECT_TRUE(Get(*coordinator, last).ok());
}

}  // namespace
}  // namespace nacre::coordination
