// The promises of fsync, fdatasync and O_DSYNC, also when several run at once, and the errors that they
// report.
#include <linux/fs.h>

#include "client/inode.h"
#include "server/kv/mem_kv.h"
#include "tests/client/harness.h"

namespace nacre::client {
namespace {

class Durable : public testing::Test {
 protected:
  explicit Durable(HarnessOptions options = {}) : harness_(options), client_(harness_.Mount()) {}

  Mounted& c() { return *client_; }
  // Begins an fsync; *done becomes true when it has returned.
  std::shared_ptr<std::optional<Status>> BeginFsync(const HandlePtr& file, bool data_only) {
    auto done = std::make_shared<std::optional<Status>>();
    Spawn(c().process()->executor(), c().fs().Fsync(file, data_only),
          [done](Status status) { *done = std::move(status); });
    return done;
  }
  std::shared_ptr<std::optional<Status>> BeginTruncate(const HandlePtr& file, uint64_t size) {
    auto done = std::make_shared<std::optional<Status>>();
    SetAttributes set;
    set.size = size;
    Spawn(c().process()->executor(), c().fs().Setattr(c().caller, file->inode->fid, set, file),
          [done](StatusOr<Known> known) { *done = known.status(); });
    return done;
  }
  HandlePtr Written(const std::string& name, size_t size) {
    HandlePtr file = c().Create(name);
    c().Write(file, 0, Pattern(size, size));
    EXPECT_TRUE(c().Fsync(file).ok());
    return file;
  }
  void CrashOsses() {
    for (int i = 0; i < 2; ++i) harness_.cluster.Crash(harness_.cluster.oss(i), sim::Loss::kProcess);
  }
  void BootOsses() {
    for (int i = 0; i < 2; ++i) harness_.cluster.Boot(harness_.cluster.oss(i));
  }
  // How often the MDS was asked to sync meanwhile.
  template <typename F>
  int Syncs(F action) {
    const int before = c().requests["sync"];
    action();
    return c().requests["sync"] - before;
  }

  Harness harness_;
  std::unique_ptr<Mounted> client_;
};

TEST_F(Durable, ASecondFsyncDoesNotReturnBeforeTheFirst) {
  HandlePtr file = Written("f", 100'000);
  HandlePtr direct = c().OpenName("f", O_RDWR | O_DIRECT);
  c().Write(direct, 0, Pattern(1, 65536));
  harness_.world.RunFor(100ms);  // it is with the OSTs, not synced
  CrashOsses();
  auto first = BeginFsync(file, true), second = BeginFsync(direct, true);
  harness_.world.RunFor(3s);
  EXPECT_FALSE(first->has_value());
  EXPECT_FALSE(second->has_value());
  BootOsses();
  ASSERT_TRUE(harness_.RunUntil([&] { return first->has_value() && second->has_value(); }));
  EXPECT_TRUE((*first)->ok() && (*second)->ok());
}

// A truncation that waits for an OST while another file is synced was not synced with it.
TEST_F(Durable, WhatIsUnderWayDuringASyncIsNotTakenForSynced) {
  HandlePtr cut = Written("cut", 300'000), small = Written("small", 100);
  CrashOsses();
  auto truncated = BeginTruncate(cut, 150'000);
  harness_.world.RunFor(1s);
  ASSERT_FALSE(truncated->has_value());
  c().Write(small, 0, "x");
  ASSERT_TRUE(c().Fsync(small).ok());
  BootOsses();
  ASSERT_TRUE(harness_.RunUntil([&] { return truncated->has_value(); }));
  ASSERT_TRUE((*truncated)->ok());
  EXPECT_EQ(Syncs([&] { EXPECT_TRUE(c().Fsync(cut).ok()); }), 1);
}

// As nacre sync asks for it: files that are open included, whoever dies at once afterwards.
TEST_F(Durable, ASyncOfTheMountLeavesNothingOut) {
  const std::string bytes = Pattern(7, 300'000);
  const Fid directory = c().Mkdir("d");
  for (int i = 0; i < 40; ++i) c().Write(c().Create("f" + std::to_string(i), O_RDWR, directory), 0, bytes);
  c().Write(c().Create("small", O_RDWR, directory), 0, "some bytes");
  const auto synced = c().Await(c().fs().GetXattr(c().caller, kRootFid, "nacre.sync"));
  ASSERT_TRUE(synced.ok()) << synced.status();
  c().Kill();
  for (int node : {harness_.cluster.mds(), harness_.cluster.oss(0), harness_.cluster.oss(1)}) {
    harness_.cluster.Crash(node, sim::Loss::kPower);
    harness_.cluster.Boot(node);
  }
  auto next = harness_.Mount();
  const Fid found = FromProto(next->Lookup("d")->attr.fid());
  for (int i = 0; i < 40; ++i) {
    const HandlePtr file = next->OpenName("f" + std::to_string(i), O_RDONLY, found);
    EXPECT_TRUE(next->Read(file, 0, bytes.size() + 1) == bytes) << i;
  }
  EXPECT_EQ(next->Read(next->OpenName("small", O_RDONLY, found), 0, 100), "some bytes");
}

TEST_F(Durable, ADirectoryHasWhatTheMdsHasDone) {
  HandlePtr file = Written("f", 10);
  auto directory = c().Await(c().fs().Opendir(c().caller, kRootFid));
  ASSERT_TRUE(directory.ok());
  ASSERT_TRUE(c().Await(c().fs().Fsync(*directory, false)).ok());
  ASSERT_TRUE(c().Await(c().fs().Link(c().caller, file->inode->fid, kRootFid, "linked")).ok());
  EXPECT_EQ(Syncs([&] { EXPECT_TRUE(c().Await(c().fs().Fsync(*directory, true)).ok()); }), 1);
  ASSERT_TRUE(
      c().Await(c().fs().Rename(c().caller, kRootFid, "f", kRootFid, "linked", RENAME_EXCHANGE)).ok());
  EXPECT_EQ(Syncs([&] { EXPECT_TRUE(c().Await(c().fs().Fsync(*directory, true)).ok()); }), 1);
}

// --- errors ---

class SoftDurable : public Durable {
 protected:
  SoftDurable() : Durable(MakeOptions()) {}
  static HarnessOptions MakeOptions() {
    HarnessOptions options;
    options.client.retry.hard = false;
    options.client.retry.soft_timeout = 5s;
    return options;
  }
};

TEST_F(SoftDurable, AnErrorThatNobodyHasSeenIsToldToALaterHandle) {
  HandlePtr writer = Written("f", 100'000);
  CrashOsses();
  c().Write(writer, 0, Pattern(2, 100'000));
  const Fid fid = writer->inode->fid;
  ASSERT_TRUE(c().Await(c().fs().Release(writer)).ok());
  writer.reset();
  harness_.world.RunFor(30s);  // its bytes could not be written back
  BootOsses();
  harness_.world.RunFor(20s);
  HandlePtr later = c().Open(fid), other = c().Open(fid);
  EXPECT_THAT(c().Fsync(later), HasErrno(EIO));
  EXPECT_TRUE(c().Fsync(later).ok());
  EXPECT_THAT(c().Fsync(other), HasErrno(EIO));
  HandlePtr last = c().Open(fid);
  EXPECT_TRUE(c().Fsync(last).ok());
}

// Nobody else would ever see that size, and an append here would leave a hole up to there.
TEST_F(SoftDurable, AFileIsNoLongerThanWhatCouldBeWritten) {
  HandlePtr file = Written("f", 100'000);
  CrashOsses();
  c().Write(file, 100'000, Pattern(2, 100'000));
  EXPECT_EQ(c().Stat(file->inode->fid).size(), 200'000u);
  harness_.world.RunFor(30s);  // its bytes could not be written back
  BootOsses();
  harness_.world.RunFor(20s);
  EXPECT_THAT(c().Fsync(file), HasErrno(EIO));
  EXPECT_EQ(c().Stat(file->inode->fid).size(), 100'000u);
  c().Write(file, 100'000, Pattern(3, 10));
  EXPECT_TRUE(c().Fsync(file).ok());
  EXPECT_EQ(c().Stat(file->inode->fid).size(), 100'010u);
}

// A write past the cache that fails takes nothing with it that was acknowledged before, or says so.
TEST_F(SoftDurable, ADirectWriteThatFailsDropsNothingInSilence) {
  HandlePtr file = Written("f", 1 << 20), direct = c().Open(file->inode->fid, O_RDWR | O_DIRECT | O_DSYNC);
  c().Write(file, 0, Pattern(2, 8192));
  CrashOsses();
  EXPECT_FALSE(c().TryWrite(direct, 0, Pattern(3, 4096)).ok());
  BootOsses();
  harness_.world.RunFor(20s);
  EXPECT_THAT(c().Fsync(file), HasErrno(EIO));
}

TEST_F(Durable, ARefusedChangeWithoutAHandleIsToldByTheNextFsync) {
  HandlePtr file = Written("f", 10), other = Written("g", 10);
  const Fid top = c().Mkdir("top");
  ASSERT_TRUE(c().Fsync(file).ok());
  auto& store = dynamic_cast<MemKv&>(harness_.cluster.mdt());
  store.SetCommitHook([](const KvBatch&) { return ErrnoError(EIO, "the disk is gone"); });
  c().Mkdir("refused", top);
  harness_.world.RunFor(1s);
  store.SetCommitHook([](const KvBatch&) { return OkStatus(); });
  EXPECT_THAT(c().Fsync(file), HasErrno(EIO));
  EXPECT_TRUE(c().Fsync(file).ok());
  EXPECT_THAT(c().Fsync(other), HasErrno(EIO));
  EXPECT_TRUE(c().Fsync(c().OpenName("f")).ok());
}

TEST_F(Durable, WhatAnEvictionHasLostIsToldToALaterHandle) {
  HandlePtr file = Written("f", 100'000), whole = Written("whole", 100'000);
  c().Write(file, 0, Pattern(3, 1000));
  harness_.network.Cut(100, harness_.cluster.mds());
  harness_.network.Cut(harness_.cluster.mds(), 100);
  harness_.network.Cut(100, harness_.cluster.oss(0));
  harness_.network.Cut(100, harness_.cluster.oss(1));
  auto second = harness_.Mount();
  (void)second->OpenName("f");  // the first is evicted for it
  harness_.network.Heal();
  harness_.world.RunFor(60s);
  HandlePtr later = c().OpenName("f");
  c().Write(later, 0, "x");  // only fsync tells what was before the open
  EXPECT_THAT(c().Fsync(later), HasErrno(EIO));
  EXPECT_TRUE(c().Fsync(c().OpenName("f")).ok());
  EXPECT_TRUE(c().Fsync(c().OpenName("whole")).ok());
}

}  // namespace
}  // namespace nacre::client
