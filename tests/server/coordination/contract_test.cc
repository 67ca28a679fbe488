// The contract of Coordinator: in memory, and over a real etcd of one and of three members.
#include <gtest/gtest.h>

#include <algorithm>

#include "common/random.h"
#include "common/runtime.h"
#include "server/coordination/etcd_coordinator.h"
#include "server/coordination/mem_coordinator.h"
#include "tests/server/coordination/etcd_cluster.h"
#include "tests/server/coordination/history.h"

namespace nacre::coordination {
namespace {

constexpr Duration kTime = 20s;

// One etcd for all tests, whose keys have the test's name in front.
EtcdCluster& SharedCluster(int members) {
  static std::map<int, std::unique_ptr<EtcdCluster>> clusters;
  auto& cluster = clusters[members];
  if (cluster == nullptr) cluster = std::make_unique<EtcdCluster>(EtcdCluster::Options{.members = members});
  return *cluster;
}

// Parameter: members of a real etcd; 0: in memory.
class CoordinatorTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    prefix_ = absl::StrCat(testing::UnitTest::GetInstance()->current_test_info()->name(), "/");
    if (GetParam() == 0) {
      memory_.emplace(RealClock(), SystemRandom(), runtime_.executor());
      coordinator_ = memory_->NewClient("one", RealClock());
      return;
    }
    NACRE_NEEDS_ETCD();
    EtcdOptions options;
    options.endpoints = SharedCluster(GetParam()).endpoints();
    auto coordinator = NewEtcdCoordinator(options);
    ASSERT_TRUE(coordinator.ok()) << coordinator.status();
    coordinator_ = *std::move(coordinator);
  }

  std::string Key(const std::string& name) const { return prefix_ + name; }

  Entry Get(const std::string& name) {
    StatusOr<Entry> entry = runtime_.Run(coordinator_->Get(Key(name), kTime));
    EXPECT_TRUE(entry.ok()) << entry.status();
    return entry.ok() ? *entry : Entry();
  }
  Listing List(const std::string& prefix) {
    StatusOr<Listing> listing = runtime_.Run(coordinator_->List(prefix, kTime));
    EXPECT_TRUE(listing.ok()) << listing.status();
    return listing.ok() ? *listing : Listing();
  }
  Outcome Transact(Transaction transaction) {
    StatusOr<Outcome> outcome = runtime_.Run(coordinator_->Transact(std::move(transaction), kTime));
    EXPECT_TRUE(outcome.ok()) << outcome.status();
    return outcome.ok() ? *outcome : Outcome();
  }
  Outcome Set(const std::string& name, std::string value) {
    return Transact({{}, {{Key(name), std::move(value)}}, {}});
  }
  Hint Next(Watch& watch, Duration timeout) {
    StatusOr<Hint> hint = runtime_.Run(watch.Next(timeout));
    EXPECT_TRUE(hint.ok()) << hint.status();
    return hint.value_or(Hint::kQuiet);
  }

  Runtime runtime_{1};
  std::optional<MemEtcd> memory_;
  std::unique_ptr<Coordinator> coordinator_;
  std::string prefix_;
};

INSTANTIATE_TEST_SUITE_P(Forms, CoordinatorTest, testing::Values(0, 1, 3), [](const auto& info) {
  return info.param == 0 ? std::string("Memory") : absl::StrCat("Etcd", info.param);
});

TEST_P(CoordinatorTest, WhatIsNotThereHasRevisionZero) {
  const Entry entry = Get("nothing");
  EXPECT_EQ(entry, (Entry{Key("nothing"), "", 0}));
  EXPECT_FALSE(entry.exists());
}

TEST_P(CoordinatorTest, AKeyIsMadeOnce) {
  const Outcome first = Transact({{{Key("a"), 0}}, {{Key("a"), "mine"}}, {}});
  EXPECT_TRUE(first.succeeded);
  EXPECT_TRUE(first.present.empty());
  const Outcome second = Transact({{{Key("a"), 0}}, {{Key("a"), "yours"}}, {}});
  EXPECT_FALSE(second.succeeded);
  EXPECT_EQ(second.present, (std::vector<Entry>{{Key("a"), "mine", first.revision}}));
  EXPECT_EQ(Get("a"), (Entry{Key("a"), "mine", first.revision}));
}

TEST_P(CoordinatorTest, OfTwoWithTheSameConditionOneSucceeds) {
  const int64_t revision = Set("a", "1").revision;
  const Outcome first = Transact({{{Key("a"), revision}}, {{Key("a"), "2"}}, {}});
  EXPECT_TRUE(first.succeeded);
  EXPECT_GT(first.revision, revision);
  EXPECT_FALSE(Transact({{{Key("a"), revision}}, {{Key("a"), "3"}}, {}}).succeeded);
  EXPECT_EQ(Get("a").value, "2");
  EXPECT_EQ(Get("a").mod_revision, first.revision);
}

TEST_P(CoordinatorTest, ATransactionIsOneRevisionAllOrNothing) {
  const int64_t old = Set("old", "x").revision;
  const Transaction all{{{Key("old"), old}, {Key("b"), 0}}, {{Key("b"), "1"}, {Key("c"), "2"}}, {Key("old")}};
  const Outcome done = Transact(all);
  EXPECT_TRUE(done.succeeded);
  EXPECT_EQ(Get("b"), (Entry{Key("b"), "1", done.revision}));
  EXPECT_EQ(Get("c"), (Entry{Key("c"), "2", done.revision}));
  EXPECT_FALSE(Get("old").exists());

  const Outcome again = Transact({{{Key("c"), done.revision}, {Key("b"), 0}}, {{Key("d"), "3"}}, {Key("c")}});
  EXPECT_FALSE(again.succeeded);
  const std::vector<Entry> present = {
      {Key("c"), "2", done.revision}, {Key("b"), "1", done.revision}, {Key("d"), "", 0}};
  EXPECT_EQ(again.present, present);
  EXPECT_TRUE(Get("c").exists());
  EXPECT_FALSE(Get("d").exists());
}

TEST_P(CoordinatorTest, WhatIsMadeAgainHasAnotherRevision) {
  const int64_t first = Set("a", "1").revision;
  EXPECT_TRUE(Transact({{{Key("a"), first}}, {}, {Key("a")}}).succeeded);
  const Outcome of_the_old = Transact({{{Key("a"), first}}, {{Key("a"), "2"}}, {}});
  EXPECT_FALSE(of_the_old.succeeded);
  EXPECT_EQ(of_the_old.present, (std::vector<Entry>{{Key("a"), "", 0}}));
  const int64_t second = Transact({{{Key("a"), 0}}, {{Key("a"), "1"}}, {}}).revision;
  EXPECT_GT(second, first);
  EXPECT_FALSE(Transact({{{Key("a"), first}}, {{Key("a"), "2"}}, {}}).succeeded);
}

TEST_P(CoordinatorTest, ErasingNothingChangesNothing) {
  const int64_t revision = Set("a", "1").revision;
  const Outcome outcome = Transact({{{Key("a"), revision}}, {}, {Key("nothing")}});
  EXPECT_TRUE(outcome.succeeded);
  EXPECT_EQ(outcome.revision, revision);
  EXPECT_EQ(List(prefix_).revision, revision);
}

TEST_P(CoordinatorTest, AListHasThePrefixInOrder) {
  for (const char* name : {"b2", "a", "b1", "c", "b"}) Set(name, name);
  const int64_t last = Set("b\xff\xff", "end").revision;
  const Listing listing = List(Key("b"));
  std::vector<std::string> keys;
  for (const Entry& entry : listing.entries) keys.push_back(entry.key);
  EXPECT_EQ(keys, (std::vector<std::string>{Key("b"), Key("b1"), Key("b2"), Key("b\xff\xff")}));
  EXPECT_EQ(listing.revision, last);
  EXPECT_EQ(listing.entries.back(), (Entry{Key("b\xff\xff"), "end", last}));
  EXPECT_TRUE(List(Key("none")).entries.empty());
  EXPECT_GE(List("").entries.size(), 6u);
}

TEST_P(CoordinatorTest, KeysAndValuesAreBytes) {
  const std::string name("\0\xff/", 3), value("\xff\0x", 3);
  Set(name, value);
  EXPECT_EQ(Get(name).value, value);
  Set("empty", "");
  EXPECT_TRUE(Get("empty").exists());
  const std::string large(700'000, 'x');
  Set("large", large);
  EXPECT_EQ(Get("large").value, large);
}

TEST_P(CoordinatorTest, AListThatIsTooLongIsRefused) {
  Transaction transaction;
  for (size_t i = 0; i <= kMaxListEntries; ++i) {
    transaction.puts.push_back({Key(absl::StrCat(i)), "x"});
    if (transaction.puts.size() < kMaxTransactionKeys && i < kMaxListEntries) continue;
    EXPECT_TRUE(Transact(std::exchange(transaction, {})).succeeded);
  }
  const Status status = runtime_.Run(coordinator_->List(prefix_, kTime)).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_TRUE(Transact({{}, {}, {Key("0")}}).succeeded);
  EXPECT_EQ(List(prefix_).entries.size(), kMaxListEntries);
}

TEST_P(CoordinatorTest, TransactionsAgainstTheRulesAreRefused) {
  auto refused = [this](Transaction transaction) {
    const Status status = runtime_.Run(coordinator_->Transact(std::move(transaction), kTime)).status();
    return absl::IsInvalidArgument(status);
  };
  EXPECT_TRUE(refused({}));
  EXPECT_TRUE(refused({{{Key("a"), 0}}, {}, {}}));
  EXPECT_TRUE(refused({{}, {{"", "x"}}, {}}));
  EXPECT_TRUE(refused({{}, {{Key("a"), "x"}, {Key("a"), "y"}}, {}}));
  EXPECT_TRUE(refused({{}, {{Key("a"), "x"}}, {Key("a")}}));
  EXPECT_TRUE(refused({{{Key("a"), 0}, {Key("a"), 1}}, {{Key("a"), "x"}}, {}}));
  EXPECT_TRUE(refused({{{Key("a"), -1}}, {{Key("a"), "x"}}, {}}));
  EXPECT_TRUE(refused({{}, {{Key("a"), std::string(kMaxTransactionBytes, 'x')}}, {}}));
  Transaction many;
  for (size_t i = 0; i <= kMaxTransactionKeys; ++i) many.erases.push_back(Key(absl::StrCat(i)));
  EXPECT_TRUE(refused(many));
  EXPECT_TRUE(absl::IsInvalidArgument(runtime_.Run(coordinator_->Get("", kTime)).status()));
  EXPECT_FALSE(Get("a").exists());
  many.erases.pop_back();
  EXPECT_TRUE(Transact(many).succeeded);
}

TEST_P(CoordinatorTest, NothingIsLostAmongWritersThatMeet) {
  History history(Key("tokens"));
  runtime_.Run([](Coordinator* coordinator, History* history) -> Task<int> {
    std::vector<Task<int>> writers;
    for (int i = 0; i < 6; ++i) {
      writers.push_back([](Coordinator* coordinator, History* history, int i) -> Task<int> {
        std::string name = absl::StrCat("w", i);
        std::function<bool()> enough = [history] { return history->successes() >= 60; };
        co_await history->Write(coordinator, &RealClock(), std::move(name), kTime, std::move(enough));
        co_return 0;
      }(coordinator, history, i));
    }
    std::vector<int> all = co_await WhenAll(std::move(writers));
    co_return static_cast<int>(all.size());
  }(coordinator_.get(), &history));
  EXPECT_GE(history.successes(), 60);
  EXPECT_EQ(history.unknown(), 0);
  EXPECT_EQ(history.Judge(Get("tokens").value), "");
}

TEST_P(CoordinatorTest, AWatchTellsOfChangesWithItsPrefix) {
  const int64_t revision = Set("w/a", "1").revision;
  const auto watch = coordinator_->NewWatch(Key("w/"), revision);
  EXPECT_EQ(Next(*watch, 200ms), Hint::kQuiet);
  Set("other", "1");
  EXPECT_EQ(Next(*watch, 200ms), Hint::kQuiet);
  Set("w/b", "1");
  EXPECT_EQ(Next(*watch, kTime), Hint::kChanged);
  EXPECT_EQ(Next(*watch, 200ms), Hint::kQuiet);
  EXPECT_TRUE(Transact({{}, {}, {Key("w/a")}}).succeeded);
  EXPECT_EQ(Next(*watch, kTime), Hint::kChanged);
}

TEST_P(CoordinatorTest, AWatchTellsOfWhatWasChangedBeforeItBegan) {
  const int64_t first = Set("a", "1").revision;
  Set("a", "2");
  EXPECT_EQ(Next(*coordinator_->NewWatch(prefix_, first), kTime), Hint::kChanged);
  const int64_t last = List(prefix_).revision;
  EXPECT_EQ(Next(*coordinator_->NewWatch(prefix_, last), 200ms), Hint::kQuiet);
}

TEST_P(CoordinatorTest, AWatchWakesWhoWaits) {
  const int64_t revision = Set("a", "1").revision;
  const auto watch = coordinator_->NewWatch("", revision);
  EXPECT_EQ(Next(*watch, 100ms), Hint::kQuiet);
  StatusOr<Hint> hint = Hint::kQuiet;
  std::promise<void> told;
  Spawn(runtime_.executor(), watch->Next(kTime), [&](StatusOr<Hint> value) {
    hint = std::move(value);
    told.set_value();
  });
  const Duration begin = RealClock().Now();
  Set("a", "2");
  told.get_future().get();
  EXPECT_EQ(*hint, Hint::kChanged);
  EXPECT_LT(RealClock().Now() - begin, kTime / 2);
}

}  // namespace
}  // namespace nacre::coordination
