// The contract of KvStore, for both forms.
#include "server/kv/kv_store.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <boost/asio/io_context.hpp>
#include <cerrno>
#include <filesystem>
#include <map>

#include "common/random.h"
#include "server/kv/mem_kv.h"
#include "server/kv/rocks_kv.h"
#include "tests/common/await.h"

namespace nacre {
namespace {

class KvStoreTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (!GetParam()) {
      store_ = std::make_unique<MemKv>();
      return;
    }
    char name[] = "/tmp/nacre_kv_test.XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    directory_ = name;
    auto store = OpenRocksKv(directory_ + "/db", {});
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }
  void TearDown() override {
    store_.reset();
    if (!directory_.empty()) std::filesystem::remove_all(directory_);
  }

  Status Sync() {
    asio::io_context context;
    Status result = ErrnoError(EIO, "never finished");
    Spawn(context.get_executor(), [](KvStore* store, Status* result) -> Task<void> {
      *result = co_await store->Sync();
    }(store_.get(), &result));
    context.run();
    return result;
  }

  void Put(std::string key, std::string value) {
    KvBatch batch;
    batch.Put(std::move(key), std::move(value));
    ASSERT_TRUE(Await(store_->Commit(std::move(batch))).ok());
  }

  std::unique_ptr<KvStore> store_;
  std::string directory_;
};

INSTANTIATE_TEST_SUITE_P(Stores, KvStoreTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Rocks" : "Memory"; });

TEST_P(KvStoreTest, GetPutErase) {
  EXPECT_EQ(ToErrno(store_->Get("a").status()), ENOENT);
  Put("a", "1");
  EXPECT_EQ(*store_->Get("a"), "1");
  KvBatch batch;
  batch.Put("b", "2");
  batch.Erase("a");
  batch.Put("b", "3");
  ASSERT_TRUE(Await(store_->Commit(std::move(batch))).ok());
  EXPECT_EQ(ToErrno(store_->Get("a").status()), ENOENT);
  EXPECT_EQ(*store_->Get("b"), "3");
  EXPECT_TRUE(Sync().ok());
}

// A commit of the same key once the place of a batch is settled comes behind it, though that batch may not be
// there to be seen yet.
TEST_P(KvStoreTest, APlaceIsKept) {
  asio::io_context context;
  auto commit = [](KvStore* store, std::string value, OneShot<Unit> placed) -> Task<void> {
    KvBatch batch;
    batch.Put("a", std::move(value));
    batch.TellPlace(placed);
    (void)co_await store->Commit(std::move(batch));
    placed.Set({});
  };
  auto all = [&]() -> Task<void> {
    const Executor executor = co_await CurrentExecutor();
    for (int i = 0; i < 100; ++i) {
      OneShot<Unit> placed;
      Spawn(executor, commit(store_.get(), std::to_string(i), placed));
      co_await placed.Wait();
    }
  };
  Spawn(context.get_executor(), all());
  context.run();
  EXPECT_EQ(*store_->Get("a"), "99");
}

TEST_P(KvStoreTest, KeysAndValuesAreBytes) {
  std::string key("\0\xff\0", 3), value("\xff\0x", 3);
  Put(key, value);
  Put(std::string("\0", 1), "");
  EXPECT_EQ(*store_->Get(key), value);
  EXPECT_EQ(*store_->Get(std::string("\0", 1)), "");
}

TEST_P(KvStoreTest, ScanAndLast) {
  for (const char* key : {"a", "b1", "b2", "b3", "c"}) Put(key, std::string("v") + key);
  auto all = store_->Scan("", "", 100);
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(all->size(), 5u);
  auto some = store_->Scan("b", PrefixEnd("b"), 2);
  ASSERT_EQ(some->size(), 2u);
  EXPECT_EQ((*some)[0].key, "b1");
  EXPECT_EQ((*some)[1].value, "vb2");
  EXPECT_EQ(store_->Last("b", PrefixEnd("b"))->key, "b3");
  EXPECT_EQ(store_->Last("b", "b3")->key, "b2");
  EXPECT_EQ(store_->Last("", "")->key, "c");
  EXPECT_EQ(ToErrno(store_->Last("d", "").status()), ENOENT);
  EXPECT_EQ(ToErrno(store_->Last("aa", "b").status()), ENOENT);
}

TEST_P(KvStoreTest, AgreesWithAMap) {
  SeededRandom random(7);
  std::map<std::string, std::string> model;
  for (int round = 0; round < 500; ++round) {
    KvBatch batch;
    for (uint64_t i = random.Below(5) + 1; i > 0; --i) {
      std::string key = absl::StrCat("k", random.Below(50));
      if (random.OneIn(3)) {
        batch.Erase(key);
        model.erase(key);
      } else {
        model[key] = absl::StrCat(random.Next());
        batch.Put(key, model[key]);
      }
    }
    ASSERT_TRUE(Await(store_->Commit(std::move(batch))).ok());
  }
  auto entries = store_->Scan("", "", 1000);
  ASSERT_TRUE(entries.ok());
  std::map<std::string, std::string> found;
  for (KvEntry& entry : *entries) found[entry.key] = entry.value;
  EXPECT_EQ(found, model);
}

TEST(PrefixEnd, IsBehindEveryKeyWithThePrefix) {
  EXPECT_EQ(PrefixEnd("a"), "b");
  EXPECT_EQ(PrefixEnd("a\xff"), "b");
  EXPECT_EQ(PrefixEnd("\xff\xff"), "");
  EXPECT_EQ(PrefixEnd(""), "");
}

TEST_P(KvStoreTest, ASnapshotKeepsWhatWasThere) {
  Put("a", "1");
  Put("b", "2");
  Put("c", "3");
  auto snapshot = store_->Snapshot();
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  Put("a", "changed");
  Put("bb", "new");
  KvBatch batch;
  batch.Erase("c");
  ASSERT_TRUE(Await(store_->Commit(std::move(batch))).ok());
  auto all = (*snapshot)->Read("", 1 << 20);
  ASSERT_TRUE(all.ok()) << all.status();
  std::map<std::string, std::string> found;
  for (const KvEntry& entry : *all) found[entry.key] = entry.value;
  EXPECT_EQ(found, (std::map<std::string, std::string>{{"a", "1"}, {"b", "2"}, {"c", "3"}}));
  EXPECT_EQ(*store_->Get("a"), "changed");
}

TEST_P(KvStoreTest, ASnapshotIsReadInPiecesOfBoundedSize) {
  for (char key = 'a'; key <= 'z'; ++key) Put(std::string(1, key), std::string(99, key));
  auto snapshot = store_->Snapshot();
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  std::string keys, from;
  while (true) {
    auto page = (*snapshot)->Read(from, 250);
    ASSERT_TRUE(page.ok()) << page.status();
    if (page->empty()) break;
    EXPECT_LE(page->size(), 3u);  // the one that goes beyond is the last
    for (const KvEntry& entry : *page) keys += entry.key;
    from = page->back().key + '\0';
  }
  EXPECT_EQ(keys, "abcdefghijklmnopqrstuvwxyz");
}

}  // namespace
}  // namespace nacre
