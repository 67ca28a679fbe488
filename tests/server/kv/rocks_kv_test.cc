#include "server/kv/rocks_kv.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "tests/common/await.h"

namespace nacre {
namespace {

namespace fs = std::filesystem;

class RocksKvTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/nacre_rocks_test.XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    root_ = name;
    directory_ = root_ + "/db";
  }
  void TearDown() override { fs::remove_all(root_); }

  std::unique_ptr<KvStore> Open(RocksKvOptions options = {}) {
    auto store = OpenRocksKv(directory_, options);
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? *std::move(store) : nullptr;
  }

  static Status Put(KvStore* store, std::string key, std::string value) {
    KvBatch batch;
    batch.Put(std::move(key), std::move(value));
    return Await(store->Commit(std::move(batch)));
  }

  // The newest file with this beginning.
  std::string Find(std::string_view prefix, std::string_view suffix = "") {
    std::string found;
    for (const auto& entry : fs::directory_iterator(directory_)) {
      std::string name = entry.path().filename().string();
      if (name.starts_with(prefix) && name.ends_with(suffix)) found = std::max(found, entry.path().string());
    }
    return found;
  }

  std::string root_, directory_;
};

TEST_F(RocksKvTest, KeepsWhatWasCommittedWithoutSync) {
  ASSERT_TRUE(Put(Open().get(), "a", "1").ok());
  EXPECT_EQ(*Open()->Get("a"), "1");
}

TEST_F(RocksKvTest, SecondOpenIsRefused) {
  auto store = Open();
  auto second = OpenRocksKv(directory_, {});
  EXPECT_EQ(ToErrno(second.status()), EBUSY);
  EXPECT_NE(second.status().message().find(AbslView(directory_)), absl::string_view::npos) << second.status();
}

TEST_F(RocksKvTest, MissingCurrentIsDamageNotAnEmptyStore) {
  ASSERT_TRUE(Put(Open().get(), "a", "1").ok());
  fs::remove(directory_ + "/CURRENT");
  auto store = OpenRocksKv(directory_, {});
  EXPECT_TRUE(absl::IsDataLoss(store.status())) << store.status();
  EXPECT_NE(store.status().message().find("CURRENT"), absl::string_view::npos);
}

TEST_F(RocksKvTest, TruncatedManifestIsDamage) {
  ASSERT_TRUE(Put(Open().get(), "a", "1").ok());
  fs::resize_file(Find("MANIFEST-"), 10);
  auto store = OpenRocksKv(directory_, {});
  EXPECT_FALSE(store.ok());
  EXPECT_NE(store.status().message().find(AbslView(directory_)), absl::string_view::npos) << store.status();
}

TEST_F(RocksKvTest, ReadOnlySeesEverythingAndChangesNothing) {
  auto store = Open();
  ASSERT_TRUE(Put(store.get(), "a", "1").ok());
  store.reset();
  RocksKvOptions options;
  options.read_only = true;
  store = Open(options);
  EXPECT_EQ(*store->Get("a"), "1");
  EXPECT_EQ(ToErrno(Put(store.get(), "b", "2")), EROFS);
}

TEST_F(RocksKvTest, TheReserveIsKeptFree) {
  RocksKvOptions options;
  options.reserve_bytes = uint64_t{1} << 60;  // more than any disk has
  auto store = Open(options);
  Status status = Put(store.get(), "a", "1");
  EXPECT_EQ(ToErrno(status), ENOSPC) << status;
  EXPECT_FALSE(store->Get("a").ok());
  EXPECT_EQ(store->GetSpace().free_bytes, 0u);
}

TEST_F(RocksKvTest, FileInsteadOfDirectory) {
  std::ofstream(directory_) << "x";
  EXPECT_EQ(ToErrno(OpenRocksKv(directory_, {}).status()), ENOTDIR);
}

TEST_F(RocksKvTest, MemoryIsBounded) {
  RocksKvOptions options;
  options.memory_bytes = 16 << 20;
  auto store = Open(options);
  for (int i = 0; i < 64; ++i) {
    KvBatch batch;
    for (int j = 0; j < 16; ++j)
      batch.Put(absl::StrCat("k", i, ".", j), std::string(65536, static_cast<char>(i)));
    ASSERT_TRUE(Await(store->Commit(std::move(batch))).ok());
  }
  for (int i = 0; i < 64; ++i) ASSERT_TRUE(store->Get(absl::StrCat("k", i, ".3")).ok());
  EXPECT_LE(store->GetSpace().memory_bytes, options.memory_bytes + (4 << 20));
}

}  // namespace
}  // namespace nacre
