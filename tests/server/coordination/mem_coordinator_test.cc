// Failures between the etcd in memory and its clients, in virtual time.
#include "server/coordination/mem_coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/coordination/history.h"
#include "tests/sim/world.h"

namespace nacre::coordination {
namespace {

using testing::HasSubstr;

// An etcd and two clients, each a process of its own.
class Simulated {
 public:
  explicit Simulated(uint64_t seed) : world(seed), random_(seed) {}

  template <typename T>
  T Run(Task<T> task, sim::Process* process = nullptr) {
    std::optional<T> result;
    Spawn((process == nullptr ? one : process)->executor(), std::move(task),
          [&](T value) { result = std::move(value); });
    const bool ended = world.RunUntil([&] { return result.has_value(); }, 1h);
    if (!ended) ADD_FAILURE() << "it waits for ever";
    return *std::move(result);
  }
  StatusOr<Outcome> Set(std::string value, int64_t condition, Duration timeout = 1s) {
    Transaction transaction{{{"k", condition}}, {{"k", std::move(value)}}, {}};
    return Run(client->Transact(std::move(transaction), timeout));
  }
  std::string Value() const {
    const auto contents = etcd.Contents();
    return contents.contains("k") ? contents.at("k").value : "";
  }

  sim::World world;

 private:
  SeededRandom random_;

 public:
  sim::Process* const etcd_process = world.Start(0, "etcd");
  sim::Process* const one = world.Start(1, "one");
  sim::Process* const two = world.Start(2, "two");
  MemEtcd etcd{world.clock(), random_, etcd_process->executor()};
  const std::unique_ptr<Coordinator> client = etcd.NewClient("one", one->clock());
  const std::unique_ptr<Coordinator> other = etcd.NewClient("two", two->clock());
};

TEST(MemCoordinator, ATransactionThatCameLateIsCarriedOutAfterItsCallerHasRead) {
  Simulated simulated(1);
  simulated.etcd.SetFaults({.late_one_in = 1, .max_late = 1min});
  const Status status = simulated.Set("late", 0).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("transaction on key 'k'"));
  EXPECT_FALSE(simulated.Run(simulated.client->Get("k", 1s))->exists());
  ASSERT_TRUE(simulated.world.RunUntil([&] { return simulated.Value() == "late"; }, 2min));
}

TEST(MemCoordinator, AnotherTransactionWithTheSameConditionSettlesALateOne) {
  int first_won = 0, second_won = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    Simulated simulated(seed);
    simulated.etcd.SetFaults({.late_one_in = 1, .max_late = 3s});
    if (simulated.Set("first", 0).ok()) continue;
    simulated.etcd.SetFaults({.max_delay = 2s});
    const StatusOr<Outcome> second = simulated.Set("second", 0, 5s);
    ASSERT_TRUE(second.ok()) << second.status();
    EXPECT_EQ(simulated.Value(), second->succeeded ? "second" : "first");
    if (!second->succeeded) {
      EXPECT_EQ(second->present.at(0).value, "first");
    }
    simulated.world.RunFor(1min);
    EXPECT_EQ(simulated.Value(), second->succeeded ? "second" : "first") << "seed " << seed;
    ++(second->succeeded ? second_won : first_won);
  }
  EXPECT_GT(first_won, 0);
  EXPECT_GT(second_won, 0);
}

TEST(MemCoordinator, ATransactionOutlivesItsClient) {
  Simulated simulated(1);
  simulated.etcd.SetFaults({.late_one_in = 1, .max_late = 1min});
  Transaction transaction{{}, {{"k", "of the dead"}}, {}};
  bool told = false;
  Spawn(simulated.one->executor(), simulated.client->Transact(std::move(transaction), 2min),
        [&](const StatusOr<Outcome>&) { told = true; });
  simulated.world.RunFor(1ms);
  simulated.world.Kill(simulated.one);
  ASSERT_TRUE(simulated.world.RunUntil([&] { return simulated.Value() == "of the dead"; }, 2min));
  EXPECT_FALSE(told);
}

TEST(MemCoordinator, WithoutALeaderNothingIsKnown) {
  int carried_out = 0, not_carried_out = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    Simulated simulated(seed);
    simulated.etcd.LoseLeader(5s);
    const Duration begin = simulated.world.clock().Now();
    EXPECT_TRUE(absl::IsUnavailable(simulated.Run(simulated.client->Get("k", 1s)).status()));
    EXPECT_TRUE(absl::IsUnavailable(simulated.Run(simulated.client->List("k", 1s)).status()));
    EXPECT_TRUE(absl::IsUnavailable(simulated.Set("x", 0).status()));
    EXPECT_LE(simulated.world.clock().Now() - begin, 3s);
    EXPECT_EQ(simulated.Value(), "");
    simulated.world.RunFor(5s);
    ++(simulated.Value() == "x" ? carried_out : not_carried_out);
    EXPECT_TRUE(simulated.Run(simulated.client->Get("k", 1s)).ok());
  }
  EXPECT_GT(carried_out, 5);
  EXPECT_GT(not_carried_out, 5);
}

TEST(MemCoordinator, AnAnswerMayBeLostWithTheLeader) {
  int unknown = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    Simulated simulated(seed);
    simulated.etcd.SetFaults({.max_delay = 100ms});
    std::optional<StatusOr<Outcome>> outcome;
    Transaction transaction{{}, {{"k", "x"}}, {}};
    Spawn(simulated.one->executor(), simulated.client->Transact(std::move(transaction), 1s),
          [&](StatusOr<Outcome> value) { outcome = std::move(value); });
    ASSERT_TRUE(simulated.world.RunUntil([&] { return simulated.Value() == "x"; }, 1s));
    simulated.etcd.LoseLeader(1s);
    ASSERT_TRUE(simulated.world.RunUntil([&] { return outcome.has_value(); }, 2s));
    if (!outcome->ok()) ++unknown;
  }
  EXPECT_GT(unknown, 5);
  EXPECT_LT(unknown, 55);
}

TEST(MemCoordinator, WhoIsCutOffReachesNothingAndMissesChanges) {
  int quiet = 0, unavailable = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    Simulated simulated(seed);
    const auto watch = simulated.client->NewWatch("k", 0);
    EXPECT_EQ(*simulated.Run(watch->Next(100ms)), Hint::kQuiet);
    simulated.etcd.Cut("one");
    EXPECT_TRUE(absl::IsUnavailable(simulated.Run(simulated.client->Get("k", 1s)).status()));
    EXPECT_TRUE(absl::IsUnavailable(simulated.Set("one", 0).status()));
    EXPECT_TRUE(simulated.Run(simulated.other->Transact({{{"k", 0}}, {{"k", "two"}}, {}}, 1s), simulated.two)
                    ->succeeded);
    const StatusOr<Hint> blind = simulated.Run(watch->Next(1s));
    ++(blind.ok() ? quiet : unavailable);
    EXPECT_EQ(blind.value_or(Hint::kQuiet), Hint::kQuiet);
    simulated.etcd.Heal("one");
    EXPECT_EQ(*simulated.Run(watch->Next(1s)), Hint::kGap);
    EXPECT_EQ(*simulated.Run(watch->Next(100ms)), Hint::kQuiet);
    EXPECT_EQ(simulated.Run(simulated.client->Get("k", 1s))->value, "two");
  }
  EXPECT_GT(quiet, 5);
  EXPECT_GT(unavailable, 5);
}

TEST(MemCoordinator, AWatchThatBrokeWithTheLeaderTellsOfAGap) {
  int gaps = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    Simulated simulated(seed);
    const auto watch = simulated.client->NewWatch("k", 0);
    EXPECT_EQ(*simulated.Run(watch->Next(100ms)), Hint::kQuiet);
    simulated.etcd.LoseLeader(1s);
    const StatusOr<Hint> hint = simulated.Run(watch->Next(5s));
    ASSERT_TRUE(hint.ok()) << hint.status();
    gaps += *hint == Hint::kGap ? 1 : 0;
  }
  EXPECT_GT(gaps, 5);
  EXPECT_LT(gaps, 35);
}

TEST(MemCoordinator, HintsMayBeLost) {
  Simulated simulated(1);
  const auto watch = simulated.client->NewWatch("k", 0);
  EXPECT_EQ(*simulated.Run(watch->Next(100ms)), Hint::kQuiet);
  simulated.etcd.SetFaults({.lose_hint_one_in = 1});
  const int64_t revision = simulated.Set("1", 0)->revision;
  EXPECT_EQ(*simulated.Run(watch->Next(1min)), Hint::kQuiet);
  simulated.etcd.SetFaults({.max_hint_delay = 30s});
  EXPECT_TRUE(simulated.Set("2", revision)->succeeded);
  const Duration begin = simulated.world.clock().Now();
  EXPECT_EQ(*simulated.Run(watch->Next(1min)), Hint::kChanged);
  EXPECT_GT(simulated.world.clock().Now() - begin, 1s);
}

TEST(MemCoordinator, AWatchFromARevisionThatIsForgottenHasAGap) {
  Simulated simulated(1);
  const int64_t first = simulated.Set("1", 0)->revision;
  const int64_t second = simulated.Set("2", first)->revision;
  simulated.etcd.Compact();
  EXPECT_EQ(*simulated.Run(simulated.client->NewWatch("k", first)->Next(1s)), Hint::kGap);
  EXPECT_EQ(*simulated.Run(simulated.client->NewWatch("k", second)->Next(1s)), Hint::kQuiet);
}

struct Ended {
  std::string value;
  std::string wrong;
  int successes = 0, unknown = 0, untold = 0;
};

// Ten seconds of everything at once, then half a minute of peace.
Ended Everything(uint64_t seed) {
  Simulated simulated(seed);
  SeededRandom random(seed + 1000);
  History history("k");
  simulated.etcd.SetFaults({.max_delay = 5ms,
                            .lose_request_one_in = 20,
                            .lose_answer_one_in = 20,
                            .late_one_in = 10,
                            .max_late = 3s});
  sim::World& world = simulated.world;
  auto over = [&world] { return world.clock().Now() > 10s; };
  sim::Process* killed = world.Start(3, "killed");
  const auto third = simulated.etcd.NewClient("killed", killed->clock());
  auto write = [&](sim::Process* process, Coordinator& coordinator, std::string name) {
    Spawn(process->executor(), history.Write(&coordinator, &process->clock(), std::move(name), 500ms, over));
  };
  write(simulated.one, *simulated.client, "one");
  write(simulated.two, *simulated.other, "two");
  write(killed, *third, "killed");
  while (!over()) {
    world.RunFor(Duration(random.Below(500'000'000)));
    const std::string name = random.OneIn(2) ? "one" : "two";
    switch (random.Below(4)) {
      case 0:
        simulated.etcd.LoseLeader(Duration(random.Below(1'500'000'000)));
        break;
      case 1:
        simulated.etcd.Cut(name);
        break;
      case 2:
        simulated.etcd.Heal("one");
        simulated.etcd.Heal("two");
        break;
      default:
        if (killed->alive()) world.Kill(killed);
    }
  }
  world.RunFor(30s);
  const std::string value = simulated.Value();
  return {value, history.Judge(value), history.successes(), history.unknown(), history.Untold(value)};
}

TEST(MemCoordinator, WhateverHappensNothingIsLostOrDoneTwice) {
  int successes = 0, unknown = 0, untold = 0;
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    const Ended ended = Everything(seed);
    EXPECT_EQ(ended.wrong, "") << "seed " << seed;
    successes += ended.successes;
    unknown += ended.unknown;
    untold += ended.untold;
  }
  EXPECT_GT(successes, 1000);
  // Of those whose end nobody knew some were carried out and some were not.
  EXPECT_GT(untold, 100);
  EXPECT_GT(unknown - untold, 100);
}

TEST(MemCoordinator, TheSameSeedDoesTheSame) {
  EXPECT_EQ(Everything(7).value, Everything(7).value);
  EXPECT_NE(Everything(7).value, Everything(8).value);
}

}  // namespace
}  // namespace nacre::coordination
