#include "server/kv/rocks_kv.h"

#include <absl/strings/str_format.h>
#include <gtest/gtest.h>
#include <rocksdb/perf_context.h>
#include <rocksdb/perf_level.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "common/random.h"
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

// A long write takes a thread of its own.
TEST_F(RocksKvTest, LongAndShortWritesKeepTheirOrder) {
  auto store = Open();
  for (int i = 0; i < 20; ++i) {
    const std::string value = std::to_string(i);
    ASSERT_TRUE(Put(store.get(), "a", i % 2 == 0 ? value : std::string(100 << 10, 'x') + value).ok());
    ASSERT_TRUE(store->Get("a")->ends_with(value));
  }
  store.reset();
  EXPECT_TRUE(Open()->Get("a")->ends_with("x19"));
}

TEST_F(RocksKvTest, KeepsWhatWasCommittedWithoutSync) {
  ASSERT_TRUE(Put(Open().get(), "a", "1").ok());
  EXPECT_EQ(*Open()->Get("a"), "1");
}

// A caller that removes one range of keys after the other asks each time for the last key of a range that
// follows a long one which has just been removed.
TEST_F(RocksKvTest, LastDoesNotLookAtWhatWasRemovedBeforeItsRange) {
  constexpr int kRemoved = 500;
  auto store = Open();
  KvBatch put, erase;
  for (int i = 0; i < kRemoved; ++i) {
    const std::string key = absl::StrFormat("a%03d", i);
    put.Put(key, "1");
    erase.Erase(key);
  }
  put.Put("b1", "2");
  ASSERT_TRUE(Await(store->Commit(std::move(put))).ok());
  ASSERT_TRUE(Await(store->Commit(std::move(erase))).ok());

  rocksdb::SetPerfLevel(rocksdb::PerfLevel::kEnableCount);
  rocksdb::get_perf_context()->Reset();
  EXPECT_EQ(store->Last("b", "c")->key, "b1");
  EXPECT_TRUE(absl::IsNotFound(store->Last("b", "b1").status()));
  EXPECT_EQ(store->Last("b", "")->key, "b1");
  const uint64_t skipped = rocksdb::get_perf_context()->internal_delete_skipped_count;
  rocksdb::SetPerfLevel(rocksdb::PerfLevel::kDisable);
  EXPECT_LT(skipped, 10);
  EXPECT_TRUE(absl::IsNotFound(store->Last("a", "b").status()));
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

// A filesystem of a few MiB, with a file that fills it but for some bytes.
class SmallDisk {
 public:
  explicit SmallDisk(std::string directory) : directory_(std::move(directory)) {
    fs::create_directory(directory_);
    mounted_ = ::mount("tmpfs", directory_.c_str(), "tmpfs", 0, "size=24M") == 0;
  }
  ~SmallDisk() {
    if (mounted_) ::umount2(directory_.c_str(), MNT_DETACH);
  }
  bool mounted() const { return mounted_; }
  void Fill(uint64_t left) {
    const std::string name = directory_ + "/ballast";
    std::ofstream file(name);
    while (file << std::string(1 << 12, 'x') << std::flush) continue;
    file.close();
    fs::resize_file(name, fs::file_size(name) - left);
  }
  void MakeRoom() { fs::remove(directory_ + "/ballast"); }

 private:
  const std::string directory_;
  bool mounted_ = false;
};

class RocksKvFullDiskTest : public RocksKvTest, public testing::WithParamInterface<uint64_t> {};

// RocksDB itself would end the process at the first Sync, or wait for ever for a flush that failed.
TEST_P(RocksKvFullDiskTest, IsAnErrorUntilThereIsRoomAgain) {
  SmallDisk disk(root_ + "/disk");
  if (!disk.mounted()) GTEST_SKIP() << "no right to mount a tmpfs";
  directory_ = root_ + "/disk/db";
  RocksKvOptions options;
  options.reserve_bytes = 0;
  options.memory_bytes = 1 << 20;
  auto store = Open(options);
  SeededRandom random(1);
  int kept = 0;
  for (int round = 0; round < 2; ++round) {
    disk.Fill(GetParam());
    Status status;
    for (; kept < 30000; ++kept) {
      std::string value(1000, '\0');  // that no compression makes shorter
      for (char& byte : value) byte = static_cast<char>(random.Next());
      status = Put(store.get(), absl::StrCat("key", kept), value);
      if (!status.ok()) break;
    }
    EXPECT_EQ(ToErrno(status), ENOSPC) << status;
    EXPECT_FALSE(Await(store->Sync()).ok());
    EXPECT_EQ(ToErrno(Put(store.get(), "more", std::string(1000, 'v'))), ENOSPC);
    EXPECT_FALSE(Await(store->Sync()).ok());
    EXPECT_EQ(kept > 0, store->Get("key0").ok());
    disk.MakeRoom();
    for (int tries = 0; tries < 100 && !Put(store.get(), "again", "1").ok(); ++tries) ::usleep(100'000);
    EXPECT_TRUE(Await(store->Sync()).ok());
    EXPECT_TRUE(store->Get("again").ok());
  }
  store.reset();
  store = Open(options);
  EXPECT_FALSE(store->Get("more").ok());
  for (int i = 0; i < kept; ++i) ASSERT_TRUE(store->Get(absl::StrCat("key", i)).ok()) << i;
}

INSTANTIATE_TEST_SUITE_P(BytesLeft, RocksKvFullDiskTest,
                         testing::Values(0, 300 << 10, 1 << 20, 2 << 20, 5 << 20));

// Clients have been answered some changes before the disk was full.
TEST_F(RocksKvTest, ALittleMoreIsTakenWhenOthersHaveFilledTheDisk) {
  SmallDisk disk(root_ + "/disk");
  if (!disk.mounted()) GTEST_SKIP() << "no right to mount a tmpfs";
  directory_ = root_ + "/disk/db";
  RocksKvOptions options;
  options.reserve_bytes = 8 << 20;
  options.memory_bytes = 1 << 20;
  auto store = Open(options);
  ASSERT_TRUE(Put(store.get(), "before", "1").ok());
  disk.Fill(4 << 20);
  ::usleep(10'000);
  int taken = 0;
  while (taken < 5000 && Put(store.get(), absl::StrCat("key", taken), std::string(1000, 'v')).ok()) ++taken;
  EXPECT_GE(taken, 900);
  EXPECT_LE(taken, 1100);
  store.reset();
  store = Open(options);
  EXPECT_EQ(ToErrno(Put(store.get(), "after", "1")), ENOSPC) << "nobody has been told anything";
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
