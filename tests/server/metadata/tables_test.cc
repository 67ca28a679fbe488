#include "server/metadata/tables.h"

#include <dirent.h>
#include <sys/stat.h>

#include "server/kv/mem_kv.h"
#include "tests/common/await.h"
#include "tests/server/metadata/harness.h"

namespace nacre::mds {
namespace {

constexpr uint64_t kRecordBytes = 64 << 20;  // room for more than is made here

// A store whose commits wait for the test.
class HeldKv : public MemKv {
 public:
  Task<Status> Commit(KvBatch batch) override {
    if (hold) {
      OneShot<Unit> go;
      held.push_back(go);
      co_await go.Wait();
    }
    co_return co_await MemKv::Commit(std::move(batch));
  }
  void Release() {
    for (const OneShot<Unit>& go : std::exchange(held, {})) go.Set({});
  }

  bool hold = false;
  std::vector<OneShot<Unit>> held;
};

// Counts looks for entries, and can store what it then calls a failure.
class SeenKv : public MemKv {
 public:
  StatusOr<std::string> Get(std::string_view key) override {
    if (key[0] == static_cast<char>(Table::kEntry)) ++looks;
    return MemKv::Get(key);
  }
  Task<Status> Commit(KvBatch batch) override {
    const Status status = co_await MemKv::Commit(std::move(batch));
    co_return fail ? ErrnoError(EIO, "it is not known whether that is stored") : status;
  }

  int looks = 0;
  bool fail = false;
};

class NewDirectory : public testing::Test {
 protected:
  NewDirectory() {
    Transaction transaction(*tables_);
    Inode inode;
    inode.fid = kDirectory;
    inode.mode = S_IFDIR | 0755;
    inode.nlink = 2;
    transaction.Create(std::move(inode));
    EXPECT_TRUE(Await(tables_->Commit(&transaction)).ok());
  }

  Status Add(const std::string& name) {
    Transaction transaction(*tables_);
    EXPECT_TRUE(transaction.AddEntry(kDirectory, name, Fid{7, 2, 0}, DT_REG).ok());
    return Await(tables_->Commit(&transaction));
  }
  bool Finds(const std::string& name) { return tables_->FindEntry(kDirectory, name).ok(); }

  static constexpr Fid kDirectory{7, 1, 0};
  SeededRandom random_{1};
  SeenKv store_;
  std::unique_ptr<Tables> tables_ = *Await(Tables::Open(store_, random_, WallTime{}, kRecordBytes));
};

TEST_F(NewDirectory, IsKnownToLackWhatItLacks) {
  EXPECT_FALSE(Finds("a"));
  ASSERT_TRUE(Add("a").ok());
  EXPECT_TRUE(Finds("a"));
  EXPECT_FALSE(Finds("b"));
  {
    Transaction transaction(*tables_);
    ASSERT_TRUE(transaction.RemoveEntry(kDirectory, "a").ok());
    ASSERT_TRUE(Await(tables_->Commit(&transaction)).ok());
  }
  EXPECT_FALSE(Finds("a"));
  EXPECT_EQ(store_.looks, 0);
}

TEST_F(NewDirectory, MayHaveWhatCouldNotBeCommitted) {
  store_.fail = true;
  EXPECT_FALSE(Add("a").ok());
  EXPECT_TRUE(Finds("a"));
  EXPECT_EQ(store_.looks, 1);
}

TEST_F(NewDirectory, IsLookedIntoOnceSomethingWasEvicted) {
  constexpr int kFew = 1000, kMoreThanAreKept = 270000;
  for (int i = 0; i < kFew; ++i) ASSERT_TRUE(Add(std::to_string(i)).ok());
  EXPECT_EQ(store_.looks, 0);
  for (int i = kFew; i < kMoreThanAreKept; ++i) ASSERT_TRUE(Add(std::to_string(i)).ok());
  EXPECT_GT(store_.looks, 0);
  for (int i = 0; i < kMoreThanAreKept; ++i) ASSERT_TRUE(Finds(std::to_string(i)));
}

// Else an idle MDS would leave it to the kernel when the change reaches the disk.
TEST(Tables, ACommitThatASyncOvertakesIsStillToBeSynced) {
  asio::io_context context;
  SeededRandom random{1};
  HeldKv store;
  auto tables = *Await(Tables::Open(store, random, WallTime{}, kRecordBytes));
  store.hold = true;
  std::optional<Status> committed;
  KvBatch batch;
  batch.Put(TableKey(Table::kLosses), EncodeNumber(1));
  Spawn(context.get_executor(), tables->CommitBatch(std::move(batch)),
        [&](Status status) { committed = std::move(status); });
  context.poll();
  ASSERT_TRUE(Await(tables->Sync()).ok());
  EXPECT_FALSE(committed.has_value());
  store.Release();
  context.restart();
  context.run();
  ASSERT_TRUE(committed.has_value() && committed->ok());
  EXPECT_EQ(store.unsynced_batches(), 1u);
  EXPECT_TRUE(tables->HasUnsynced());
}

// Changes of the number of inodes are under way together, and their sum is right.
TEST(Tables, TheNumberOfInodesIsThatOfAllCommits) {
  asio::io_context context;
  SeededRandom random{1};
  HeldKv store;
  auto tables = *Await(Tables::Open(store, random, WallTime{}, kRecordBytes));
  store.hold = true;
  constexpr uint32_t kInodes = 100;  // more than there are counters
  uint32_t done = 0;
  for (uint32_t i = 1; i <= kInodes; ++i) {
    Task<Status> make = [](Tables* tables, uint32_t i) -> Task<Status> {
      Transaction transaction(*tables);
      Inode inode;
      inode.fid = {7, i, 0};
      inode.mode = S_IFIFO | 0600;
      transaction.Create(std::move(inode));
      co_return co_await tables->Commit(&transaction);
    }(tables.get(), i);
    Spawn(context.get_executor(), std::move(make), [&done](Status status) { done += status.ok() ? 1 : 0; });
  }
  context.poll();
  EXPECT_GT(store.held.size(), 1u);
  while (!store.held.empty()) {
    store.Release();
    context.restart();
    context.poll();
  }
  store.hold = false;
  EXPECT_EQ(done, kInodes);
  EXPECT_EQ(tables->InodeCount(), kInodes + 1);
  auto again = *Await(Tables::Open(store, random, WallTime{}, kRecordBytes));
  EXPECT_EQ(again->InodeCount(), kInodes + 1);
}

// --- a full MDT: only what may use the reserve is taken ---

class FullMdt : public testing::Test {
 protected:
  FullMdt() {
    client.Mknod(kRootFid, "d", S_IFDIR | 0755);
    file = FidOf(client.Mknod(kRootFid, "f", S_IFREG | 0644));
    client.Mknod(kRootFid, "g", S_IFREG | 0644);
    harness.store.SetCommitHook([](const KvBatch& batch) {
      return batch.uses_reserve() ? OkStatus() : ErrnoError(ENOSPC, "only the reserve is left");
    });
  }

  Harness harness;
  TestClient client{harness};
  Fid file;
};

TEST_F(FullMdt, TakesWhatFreesSpaceAndNothingElse) {
  EXPECT_THAT(client.Mknod(kRootFid, "new", S_IFREG | 0644), Fails(ENOSPC));
  EXPECT_THAT(client.Create(kRootFid, "new"), Fails(ENOSPC));
  proto::MetadataRequest xattr;
  *xattr.mutable_set_xattr()->mutable_fid() = ToProto(file);
  xattr.mutable_set_xattr()->set_name("user.x");
  xattr.mutable_set_xattr()->set_value("value");
  EXPECT_THAT(client.Call(xattr), Fails(ENOSPC));
  EXPECT_THAT(client.Unlink(kRootFid, "f"), IsOk());
}

TEST_F(FullMdt, CanBeRestartedEnteredAndEmptied) {
  harness.Restart();
  harness.RunFor(harness.options.recovery_window + std::chrono::seconds(5));  // the old client is evicted
  TestClient other(harness);
  EXPECT_THAT(other.Lookup(kRootFid, "f"), IsOk());
  EXPECT_THAT(other.Create(kRootFid, "new"), Fails(ENOSPC));
  EXPECT_THAT(other.Unlink(kRootFid, "f"), IsOk());
  EXPECT_THAT(other.Unlink(kRootFid, "g"), IsOk());
  auto status = harness.Await(harness.server->GetStatus());
  EXPECT_EQ(status.sessions_size(), 1);
  for (const proto::OstState& ost : status.map().osts()) EXPECT_TRUE(ost.up()) << ost.info().index();
}

// Pages enough that records which stay lie inside of one, end one and begin one.
TEST(Tables, RecordsThatCannotBeSettledStayAndKeepNoOtherFromIt) {
  SeededRandom random{1};
  MemKv store;
  auto tables = *Await(Tables::Open(store, random, WallTime{}, kRecordBytes));
  constexpr uint64_t kPage = KvPages<Tables>::kEntries, kRecords = 2 * kPage + 10;
  const std::set<uint64_t> damaged = {0, 7, kPage - 1, kPage, kRecords - 1};
  KvBatch batch;
  for (uint64_t i = 0; i < kRecords; ++i) batch.Put(NumberKey(Table::kNewObjects, i), EncodeNumber(i));
  batch.Put(NumberKey(Table::kOrphan, 1), "another table's");
  ASSERT_TRUE(Await(tables->CommitBatch(std::move(batch))).ok());
  uint64_t seen = 0;
  auto settle = [&](const KvEntry& record, KvBatch* changes) {
    const uint64_t number = *ParseNumber(record.value);
    EXPECT_EQ(number, seen++);
    changes->Erase(record.key);
    changes->Put(NumberKey(Table::kFence, number), "settled");
    return [](bool fails) -> Task<Status> {
      co_return fails ? absl::DataLossError("damaged") : OkStatus();
    }(damaged.contains(number));
  };
  Status settled = Await(SettleRecords(*tables, Table::kNewObjects, "the record", settle));
  EXPECT_TRUE(settled.ok()) << settled;
  EXPECT_EQ(seen, kRecords);
  for (uint64_t i = 0; i < kRecords; ++i) {
    EXPECT_EQ(store.Get(NumberKey(Table::kNewObjects, i)).ok(), damaged.contains(i)) << i;
    EXPECT_EQ(store.Get(NumberKey(Table::kFence, i)).ok(), !damaged.contains(i)) << i;
  }
  EXPECT_TRUE(store.Get(NumberKey(Table::kOrphan, 1)).ok());
}

// A disk that refuses is no damaged record: it is not to be taken for the end.
TEST(Tables, WhatTheStoreRefusesEndsTheSettling) {
  SeededRandom random{1};
  MemKv store;
  auto tables = *Await(Tables::Open(store, random, WallTime{}, kRecordBytes));
  KvBatch batch;
  batch.Put(NumberKey(Table::kNewObjects, 1), "x");
  ASSERT_TRUE(Await(tables->CommitBatch(std::move(batch))).ok());
  store.SetCommitHook([](const KvBatch&) { return ErrnoError(EIO, "planted"); });
  auto settle = [](const KvEntry& record, KvBatch* changes) -> Task<Status> {
    changes->Erase(record.key);
    co_return OkStatus();
  };
  EXPECT_EQ(ToErrno(Await(SettleRecords(*tables, Table::kNewObjects, "the record", settle))), EIO);
  EXPECT_TRUE(store.Get(NumberKey(Table::kNewObjects, 1)).ok());
}

}  // namespace
}  // namespace nacre::mds
