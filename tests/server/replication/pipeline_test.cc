// Groups of changes, what waits for them and what does not, in virtual time; each group is written when the
// test says so.
#include "server/replication/pipeline.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "server/kv/mem_kv.h"
#include "tests/sim/world.h"

namespace nacre::replication {
namespace {

class PipelineTest : public testing::Test {
 protected:
  ~PipelineTest() override { world.KillAll(); }

  // Nothing: it waits.
  std::shared_ptr<std::optional<Status>> Begin(std::string key, std::string value) {
    auto result = std::make_shared<std::optional<Status>>();
    KvBatch batch;
    batch.Put(std::move(key), std::move(value));
    Spawn(process->executor(), pipeline.Change(std::move(batch)),
          [result](Status status) { *result = std::move(status); });
    world.RunFor(1us);
    return result;
  }
  void Change(std::string key, std::string value) {
    const auto result = Begin(std::move(key), std::move(value));
    ASSERT_TRUE(result->has_value());
    ASSERT_TRUE((*result)->ok()) << **result;
  }
  // The others have the group that is on its way to them.
  void Arrive(Status status = OkStatus()) { End(&sending, std::move(status)); }
  // The store has the group that they have.
  void Store(Status status = OkStatus()) { End(&storing, std::move(status)); }
  void Finish() {
    Arrive();
    if (!alone) Store();
  }
  void End(std::optional<OneShot<Status>>* step, Status status) {
    ASSERT_TRUE(step->has_value());
    OneShot<Status> done = *std::exchange(*step, std::nullopt);
    done.Set(std::move(status));
    world.RunFor(1us);
  }
  Task<StatusOr<Pipeline::Store>> Write(Pipeline::Changes changes) {
    EXPECT_FALSE(sending.has_value()) << "one at a time";
    groups.push_back(changes.ops.size());
    OneShot<Status> arrived = sending.emplace();
    CO_RETURN_IF_ERROR(co_await arrived.Wait());
    EXPECT_FALSE(storing.has_value()) << "one at a time";
    KvBatch batch;
    for (const KvBatch::Op& op : changes.ops) batch.Put(op.key, op.value);
    Pipeline::Store into_store;
    if (alone) {
      CO_RETURN_IF_ERROR(co_await store.Commit(std::move(batch)));
    } else {
      OneShot<Status> stored = storing.emplace();
      into_store = [this, stored, batch = std::move(batch)]() mutable {
        return IntoStore(stored, std::move(batch));
      };
    }
    co_return into_store;
  }
  Task<Status> IntoStore(OneShot<Status> stored, KvBatch batch) {
    CO_RETURN_IF_ERROR(co_await stored.Wait());
    const std::optional<OneShot<Unit>> held_up = std::exchange(returning, std::nullopt);
    Status status = co_await store.Commit(std::move(batch));
    if (held_up) co_await held_up->Wait();
    co_return status;
  }
  void Leave(std::string what) {
    pipeline.WhenKept([this, what](bool kept) { left.push_back(kept ? what : what + " dropped"); });
    world.RunFor(1us);
  }

  sim::World world{1};
  sim::Process* const process = world.Start(1, "mds");
  MemKv store;
  std::optional<OneShot<Status>> sending, storing;
  std::optional<OneShot<Unit>> returning;  // of the next group that the store has
  bool alone = false;                      // there are no others
  std::vector<size_t> groups;              // of so many keys
  std::vector<std::string> left;
  Pipeline pipeline{store, process->clock(),
                    [this](Pipeline::Changes changes) { return Write(std::move(changes)); },
                    [this](Task<void> task) { Spawn(process->executor(), std::move(task)); }};
};

TEST_F(PipelineTest, AChangeShowsAtOnceAndNothingLeavesBeforeItIsKept) {
  Leave("before");
  Change("k", "v");
  EXPECT_EQ(pipeline.view().Get("k").value(), "v");
  EXPECT_FALSE(store.Get("k").ok());
  Leave("behind");
  EXPECT_EQ(left, std::vector<std::string>{"before"});
  Finish();
  EXPECT_EQ(store.Get("k").value(), "v");
  EXPECT_EQ(left, (std::vector<std::string>{"before", "behind"}));
}

// Its thread loses the processor between the store's commit and telling of it.
TEST_F(PipelineTest, TheNextGroupMayBeToldOfFirst) {
  const OneShot<Unit> goes_on = returning.emplace();
  Change("a", "1");
  Leave("a");
  Arrive();
  Store();
  Change("b", "1");
  Leave("b");
  Finish();
  EXPECT_EQ(left, (std::vector<std::string>{"a", "b"})) << "the store has both";
  goes_on.Set({});
  world.RunFor(1us);
  Leave("later");
  EXPECT_EQ(left.back(), "later") << "though nobody changes anything any more";
}

// A group that the others have goes into the store while the next one is on its way.
TEST_F(PipelineTest, AGroupIsStoredBesideTheNext) {
  Change("a", "1");
  Leave("a");
  Change("b", "1");
  Leave("b");
  Arrive();
  EXPECT_EQ(groups, (std::vector<size_t>{1, 1})) << "the second is on its way";
  EXPECT_TRUE(left.empty()) << "if the others were lost now, nobody would have it";
  Store();
  EXPECT_EQ(left, std::vector<std::string>{"a"});
  EXPECT_EQ(store.Get("a").value(), "1");
  EXPECT_FALSE(store.Get("b").ok());
  Finish();
  EXPECT_EQ(left, (std::vector<std::string>{"a", "b"}));
}

TEST_F(PipelineTest, WithoutOthersAGroupIsWhatWasChangedWhileTheOneBeforeWasStored) {
  alone = true;
  Change("a", "1");
  Leave("a");
  for (int i = 0; i < 3; ++i) Change(absl::StrCat("k", i), "v");
  Leave("b");
  Finish();
  EXPECT_EQ(left, std::vector<std::string>{"a"});
  Finish();
  EXPECT_EQ(groups, (std::vector<size_t>{1, 3}));
  EXPECT_EQ(left, (std::vector<std::string>{"a", "b"}));
}

// As the mutations of a client's batch, which is answered as a whole.
TEST_F(PipelineTest, ChangesGatherUntilSomebodyWaitsForOne) {
  for (int i = 0; i < 10; ++i) Change(absl::StrCat("k", i), "v");
  EXPECT_TRUE(groups.empty());
  Leave("answer");
  EXPECT_EQ(groups, std::vector<size_t>{10});
  Finish();
  EXPECT_EQ(left, std::vector<std::string>{"answer"});
}

// As the inode of a directory in which much is made.
TEST_F(PipelineTest, AGroupHasTheLastOfWhatItSetsSeveralTimes) {
  for (int i = 0; i < 10; ++i) {
    Change("directory", absl::StrCat(i));
    Change(absl::StrCat("k", i), "v");
  }
  Leave("answer");
  EXPECT_EQ(groups, std::vector<size_t>{11});
  Change("directory", "next");
  Finish();
  EXPECT_EQ(store.Get("directory").value(), "9");
  EXPECT_EQ(pipeline.view().Get("directory").value(), "next");
  EXPECT_EQ(store.Get("k0").value(), "v");
}

TEST_F(PipelineTest, WhatIsChangedMeanwhileIsTheNextGroup) {
  Change("a", "1");
  Leave("a");
  for (int i = 0; i < 10; ++i) Change(absl::StrCat("k", i), "v");
  Leave("b");
  Finish();
  Finish();
  EXPECT_EQ(groups, (std::vector<size_t>{1, 10}));
  EXPECT_FALSE(sending.has_value());
}

TEST_F(PipelineTest, WhatNobodyWaitsForGathersForSomeMilliseconds) {
  Change("a", "1");
  world.RunFor(Pipeline::kGather / 2);
  Change("b", "1");
  EXPECT_TRUE(groups.empty());
  world.RunFor(Pipeline::kGather);
  EXPECT_EQ(groups, std::vector<size_t>{2});
  Change("c", "1");
  Finish();
  EXPECT_EQ(groups, std::vector<size_t>{2}) << "nobody waits for it yet";
  world.RunFor(2 * Pipeline::kGather);
  EXPECT_EQ(groups, (std::vector<size_t>{2, 1}));
  Finish();
  world.RunFor(1s);
  EXPECT_EQ(groups.size(), 2u);
}

TEST_F(PipelineTest, EnoughGoesAtOnce) {
  const std::string quarter(Pipeline::kEnough / 4, 'v');
  for (int i = 0; i < 3; ++i) Change(absl::StrCat("k", i), quarter);
  EXPECT_TRUE(groups.empty());
  Change("l", quarter);
  EXPECT_EQ(groups, std::vector<size_t>{4});
  Finish();
}

// Each waits for the changes before it alone, and they leave in their order.
TEST_F(PipelineTest, WhatWaitsLeavesInItsOrder) {
  Change("a", "1");
  Leave("a");
  Change("b", "1");
  Leave("b");
  Leave("b too");
  Finish();
  EXPECT_EQ(left, std::vector<std::string>{"a"});
  Leave("late");
  Finish();
  EXPECT_EQ(left, (std::vector<std::string>{"a", "b", "b too", "late"}));
}

TEST_F(PipelineTest, AGroupHasABound) {
  const std::string half(Pipeline::kMostTogether / 2, 'v');
  Change("a", "1");
  Leave("a");
  for (int i = 0; i < 3; ++i) Change(absl::StrCat("k", i), half);
  for (int i = 0; i < 4; ++i) Finish();
  EXPECT_EQ(groups, (std::vector<size_t>{1, 1, 1, 1}));
  Change("huge", std::string(2 * Pipeline::kMostTogether, 'v'));
  Finish();
  EXPECT_EQ(groups.size(), 5u);
}

TEST_F(PipelineTest, WhoChangesTooMuchWaitsAndNobodyOvertakes) {
  Change("a", "1");
  Leave("a");
  Change("b", std::string(Pipeline::kMostPending - 100, 'v'));
  const auto large = Begin("c", std::string(Pipeline::kMostTogether, 'v'));
  const auto small = Begin("d", "1");
  EXPECT_FALSE(large->has_value());
  EXPECT_FALSE(small->has_value()) << "there would be room, but others have come before";
  EXPECT_FALSE(pipeline.view().Get("c").ok());
  Finish();
  EXPECT_FALSE(large->has_value());
  Finish();
  ASSERT_TRUE(large->has_value());
  ASSERT_TRUE(small->has_value());
  Leave("d");
  Finish();
  Finish();
  EXPECT_EQ(groups, (std::vector<size_t>{1, 1, 1, 1}));
  EXPECT_EQ(store.Get("d").value(), "1");
}

// Nobody waits for an answer, and there is no room: what gathers goes.
TEST_F(PipelineTest, WhoWaitsForRoomWantsWhatGathers) {
  Change("a", std::string(Pipeline::kEnough - 100, 'v'));
  const auto waits = Begin("b", std::string(Pipeline::kMostPending, 'v'));
  EXPECT_FALSE(waits->has_value());
  Finish();
  ASSERT_TRUE(waits->has_value());
  Finish();
  EXPECT_EQ(groups, (std::vector<size_t>{1, 1}));
}

TEST_F(PipelineTest, AStoreThatRefusesRefusesOne) {
  store.SetCommitHook([](const KvBatch& batch) {
    return batch.ops().front().key == "b" ? ErrnoError(ENOSPC, "full") : OkStatus();
  });
  Change("a", "1");
  const auto refused = Begin("b", "1");
  ASSERT_TRUE(refused->has_value());
  EXPECT_EQ(ToErrno(**refused), ENOSPC);
  EXPECT_FALSE(pipeline.view().Get("b").ok());
  Change("c", "1");
  store.SetCommitHook(nullptr);
  Leave("c");
  Finish();
  EXPECT_EQ(groups, std::vector<size_t>{2});
  EXPECT_EQ(store.Get("c").value(), "1");
  EXPECT_FALSE(store.Get("b").ok());
}

TEST_F(PipelineTest, WhenAGroupCannotBeKeptNothingLeavesAnyMore) {
  Change("a", "1");
  Leave("a");
  Change("b", std::string(Pipeline::kMostPending - 100, 'v'));
  const auto waits = Begin("c", std::string(200, 'v'));
  EXPECT_FALSE(waits->has_value());
  Leave("b");
  Arrive(absl::UnavailableError("deposed"));
  EXPECT_EQ(left, (std::vector<std::string>{"a dropped", "b dropped"}));
  ASSERT_TRUE(waits->has_value());
  EXPECT_EQ((*waits)->message(), "deposed");
  EXPECT_FALSE((*Begin("d", "1"))->ok());
  Leave("later");
  EXPECT_EQ(left.back(), "later dropped");
  world.RunFor(1s);
  EXPECT_FALSE(sending.has_value());
  EXPECT_FALSE(store.Get("a").ok());
}

TEST_F(PipelineTest, AStoreThatFailsIsTheEnd) {
  Change("a", "1");
  Leave("a");
  Change("b", "1");
  Leave("b");
  Arrive();
  Store(ErrnoError(EIO, "disk"));
  EXPECT_EQ(left, (std::vector<std::string>{"a dropped", "b dropped"}));
  Arrive(absl::UnavailableError("deposed"));
  EXPECT_EQ((*Begin("c", "1"))->message(), "disk");
}

TEST_F(PipelineTest, SomebodyMayWaitForWhatIsKept) {
  Change("a", "1");
  std::optional<Status> kept;
  Spawn(process->executor(), pipeline.AwaitKept(), [&](Status status) { kept = std::move(status); });
  world.RunFor(1us);
  EXPECT_FALSE(kept.has_value());
  Finish();
  ASSERT_TRUE(kept.has_value());
  EXPECT_TRUE(kept->ok());
}

}  // namespace
}  // namespace nacre::replication
