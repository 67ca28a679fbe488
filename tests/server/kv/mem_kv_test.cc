#include "server/kv/mem_kv.h"

#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <cerrno>

#include "tests/common/await.h"

namespace nacre {
namespace {

void Put(MemKv* store, int i) {
  KvBatch batch;
  batch.Put("count", absl::StrCat(i));
  batch.Put(absl::StrCat("k", i), "x");
  ASSERT_TRUE(Await(store->Commit(std::move(batch))).ok());
}

int Count(MemKv* store) {
  auto value = store->Get("count");
  return value.ok() ? std::stoi(*value) : 0;
}

Status RunSync(MemKv* store, asio::io_context* context) {
  Status result = ErrnoError(EIO, "never finished");
  Spawn(context->get_executor(),
        [](MemKv* store, Status* result) -> Task<void> { *result = co_await store->Sync(); }(store, &result));
  context->restart();
  context->run();
  return result;
}

TEST(MemKv, PowerLossTakesANewestSuffixAndNothingSynced) {
  asio::io_context context;
  bool lost_some = false, kept_some = false;
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SeededRandom random(seed);
    MemKv store;
    for (int i = 1; i <= 5; ++i) Put(&store, i);
    ASSERT_TRUE(RunSync(&store, &context).ok());
    for (int i = 6; i <= 10; ++i) Put(&store, i);
    EXPECT_EQ(store.unsynced_batches(), 5u);
    store.LosePower(random);
    int left = Count(&store);
    EXPECT_GE(left, 5);
    for (int i = 1; i <= 10; ++i)
      EXPECT_EQ(store.Get(absl::StrCat("k", i)).ok(), i <= left) << i << " of " << left;
    lost_some |= left < 10;
    kept_some |= left > 5;
  }
  EXPECT_TRUE(lost_some);
  EXPECT_TRUE(kept_some);
}

TEST(MemKv, ProcessCrashLosesNothing) {
  MemKv store;
  for (int i = 1; i <= 5; ++i) Put(&store, i);
  store.CrashProcess();
  EXPECT_EQ(Count(&store), 5);
}

TEST(MemKv, ASyncThatACrashInterruptsCountsForNothing) {
  asio::io_context context;
  MemKv store;
  Put(&store, 1);
  OneShot<Unit> go;
  store.SetSyncHook([go]() -> Task<Status> {
    return [](OneShot<Unit> go) -> Task<Status> {
      co_await go.Wait();
      co_return OkStatus();
    }(go);
  });
  Status result;
  Spawn(context.get_executor(), [](MemKv* store, Status* result) -> Task<void> {
    *result = co_await store->Sync();
  }(&store, &result));
  context.poll();
  store.CrashProcess();
  go.Set({});
  context.restart();
  context.poll();
  EXPECT_EQ(ToErrno(result), ESHUTDOWN);
  EXPECT_EQ(store.unsynced_batches(), 1u);
}

TEST(MemKv, RefusesWhatDoesNotFitAndWhatTheHookRefuses) {
  MemKv store(100);
  KvBatch big;
  big.Put("key", std::string(200, 'x'));
  EXPECT_EQ(ToErrno(Await(store.Commit(std::move(big)))), ENOSPC);
  EXPECT_FALSE(store.Get("key").ok());
  store.SetCommitHook([](const KvBatch&) { return ErrnoError(EIO, "planted"); });
  KvBatch small;
  small.Put("key", "x");
  EXPECT_EQ(ToErrno(Await(store.Commit(std::move(small)))), EIO);
  EXPECT_FALSE(store.Get("key").ok());
}

}  // namespace
}  // namespace nacre
