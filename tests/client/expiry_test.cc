// Leases run out by the client's clock: a client that is cut off stops answering from what it has cached
// before anybody else can change it, and goes on when the MDS answers again.
#include "client/inode.h"
#include "tests/client/harness.h"

namespace nacre::client {
namespace {

constexpr Duration kLongAfter = 60s;  // any lease has run out, and the session been evicted if it was missed

class Expiry : public testing::Test {
 protected:
  static HarnessOptions MakeOptions() {
    HarnessOptions options;
    options.client.retry.hard = Hard();
    options.client.retry.soft_timeout = 200s;
    return options;
  }
  static bool Hard() {
    return testing::UnitTest::GetInstance()->current_test_info()->name() != std::string("SoftMountsFail");
  }
  Expiry() : harness_(MakeOptions()), a_(harness_.Mount()) {}

  // Between the client and the MDS.
  void CutOff() {
    const int node = a_->process()->node();
    harness_.network.Cut(node, harness_.cluster.mds());
    harness_.network.Cut(harness_.cluster.mds(), node);
  }
  // A file is written and closed while the OSSes do not answer; then they and the MDS die, then it is
  // unmounted.
  static void UnmountAfter(bool told, Duration frozen, Duration dead) {
    Harness harness(MakeOptions());
    auto mounted = harness.Mount();
    HandlePtr file;
    if (told) file = mounted->Create("f");  // there are no leases yet, so the MDS knows of the handle
    const Fid directory = mounted->Mkdir("dir");
    HandlePtr granted = mounted->Create("granted");
    mounted->Write(granted, 0, Pattern(1, kMiB));
    ASSERT_TRUE(mounted->Fsync(granted).ok());
    const std::vector<int> osses = {harness.cluster.oss(0), harness.cluster.oss(1)};
    for (int oss : osses) harness.network.Cut(oss, mounted->process()->node());
    if (!told) file = mounted->Create("f", O_RDWR, directory);
    const std::string bytes = Pattern(2, kMiB / 2);
    const std::span<const std::byte> piece = std::as_bytes(std::span(bytes));
    Spawn(mounted->process()->executor(), WriteAndClose(mounted->fs(), file, std::span(&piece, 1)), [] {});
    harness.world.RunFor(frozen);
    for (int oss : osses) harness.cluster.Crash(oss, sim::Loss::kProcess);
    harness.cluster.Crash(harness.cluster.mds(), sim::Loss::kProcess);
    harness.world.RunFor(dead);
    const Duration begin = harness.world.clock().Now();
    (void)mounted->Unmount();
    EXPECT_LT(harness.world.clock().Now() - begin, harness.options.client.unmount_patience + 30s);
  }
  static Task<void> WriteAndClose(FileSystem& fs, HandlePtr file,
                                  std::span<const std::span<const std::byte>> pieces) {
    (void)co_await fs.Write(file, 0, pieces);
    (void)co_await fs.Flush(file, 0);
    (void)co_await fs.Release(file);
  }
  template <typename T>
  std::shared_ptr<std::optional<T>> Begin(Task<T> task) {
    auto result = std::make_shared<std::optional<T>>();
    Spawn(a_->process()->executor(), std::move(task), [result](T value) { *result = std::move(value); });
    return result;
  }

  Harness harness_;
  std::unique_ptr<Mounted> a_;
};

TEST_F(Expiry, NothingStaleIsAnsweredWhileCutOff) {
  HandlePtr file = a_->Create("f");
  a_->Write(file, 0, "old");
  ASSERT_TRUE(a_->Fsync(file).ok());
  std::vector<Fid> forgotten;
  Invalidation invalidation;
  invalidation.data_and_attributes = [&](Fid fid, uint64_t, uint64_t) -> Task<void> {
    forgotten.push_back(fid);
    co_return;
  };
  a_->fs().SetInvalidation(std::move(invalidation));
  ASSERT_EQ(a_->fs().PagesFor(file), KernelPages::kNew);
  CutOff();
  EXPECT_EQ(a_->Read(file, 0, 10), "old");  // good for a while
  harness_.world.RunFor(kLongAfter);
  EXPECT_THAT(forgotten, testing::Contains(file->inode->fid));
  auto read = Begin(a_->fs().Read(file, 0, 10));
  auto stat = Begin(a_->fs().Getattr(a_->caller, file->inode->fid, nullptr));
  auto made = Begin(a_->fs().Mknod(a_->caller, kRootFid, "made", S_IFREG | 0644, 0));
  auto b = harness_.Mount();
  HandlePtr of_b = b->OpenName("f");
  b->Write(of_b, 0, "new");
  harness_.world.RunFor(10s);
  EXPECT_FALSE(read->has_value());
  EXPECT_FALSE(stat->has_value());
  EXPECT_FALSE(made->has_value());
  harness_.network.Heal();
  ASSERT_TRUE(harness_.RunUntil([&] { return read->has_value() && stat->has_value() && made->has_value(); }));
  EXPECT_THAT((*read)->status(), HasErrno(EIO));  // its handle has gone with the session
  EXPECT_TRUE((*stat)->ok());
  EXPECT_TRUE((*made)->ok());
  EXPECT_EQ(a_->Read(a_->OpenName("f"), 0, 10), "new");
}

// The MDS is away for longer than the lease is good, and comes back within its recovery window.
TEST_F(Expiry, GoesOnWithTheSameSessionWhenTheMdsIsBack) {
  HandlePtr file = a_->Create("f");
  a_->Write(file, 0, "held back");
  harness_.cluster.Crash(harness_.cluster.mds(), sim::Loss::kProcess);
  harness_.world.RunFor(kLongAfter);
  auto read = Begin(a_->fs().Read(file, 0, 10));
  harness_.world.RunFor(10s);
  EXPECT_FALSE(read->has_value());
  harness_.cluster.Boot(harness_.cluster.mds());
  ASSERT_TRUE(harness_.RunUntil([&] { return read->has_value(); }));
  EXPECT_TRUE((*read)->ok()) << (*read)->status();
  EXPECT_EQ(a_->Read(file, 0, 10), "held back");
}

// Nothing is promised to the kernel beyond the end of the leases.
TEST_F(Expiry, TheKernelIsPromisedNoMoreThanTheLeasesAreGoodFor) {
  HandlePtr file = a_->Create("f");
  a_->Write(file, 0, "old");
  const Fid fid = file->inode->fid;
  (void)a_->Lookup("none");  // that there is none is known now
  harness_.world.RunFor(20s);
  CutOff();
  const Duration end = harness_.world.clock().Now() + harness_.options.metadata.lease;
  Duration last{0};
  int answers = 0;
  auto negative = std::make_shared<Duration>(0);  // outlives what waits at the end
  for (;;) {
    auto known = Begin(a_->fs().Getattr(a_->caller, fid, nullptr));
    auto absent = Begin(a_->fs().Lookup(a_->caller, kRootFid, "none", negative.get()));
    harness_.world.RunFor(50ms);
    if (!known->has_value() || !absent->has_value() || answers == 1000) break;
    ASSERT_TRUE((*known)->ok());
    last = std::max({last, (**known)->until, *negative});
    ++answers;
  }
  EXPECT_GT(answers, 20);
  EXPECT_LE(last, end);
}

// Pages under the READ lease of a file, with two mounts.
TEST_F(Expiry, PagesAreNotFilledWhileCutOff) {
  HandlePtr file = a_->Create("f");
  a_->Write(file, 0, "old");
  auto b = harness_.Mount();
  ASSERT_TRUE(a_->Await(a_->fs().HoldPages(file, 0, 4096, client::PageUse::kFill)).ok());
  CutOff();
  harness_.world.RunFor(kLongAfter);
  auto held = Begin(a_->fs().HoldPages(file, 0, 4096, client::PageUse::kFill));
  harness_.world.RunFor(10s);
  EXPECT_FALSE(held->has_value());
  harness_.network.Heal();
  ASSERT_TRUE(harness_.RunUntil([&] { return held->has_value(); }));
  EXPECT_THAT((*held)->status(), HasErrno(EIO));  // its handle has gone with the session
}

// A kernel that forgets waits for a page that is being read before it comes to the pages behind it.
TEST_F(Expiry, PagesThatAreBeingReadKeepNoneOfTheOthers) {
  HandlePtr file = a_->Create("f");
  a_->Write(file, 0, Pattern(1, kMiB));
  auto b = harness_.Mount();
  constexpr uint64_t kPage = 4096;
  auto read = a_->Await(a_->fs().HoldPages(file, 2 * kPage, kPage, client::PageUse::kFill));
  auto other = a_->Await(a_->fs().HoldPages(file, 5 * kPage, 2 * kPage, client::PageUse::kFill));
  ASSERT_TRUE(read.ok() && other.ok());
  other = LockedPages{};  // answered
  std::set<std::pair<uint64_t, uint64_t>> pieces;
  Invalidation invalidation;
  invalidation.data_and_attributes = [&](Fid, uint64_t begin, uint64_t end) -> Task<void> {
    pieces.emplace(begin, end);
    OneShot<Unit> unlocked;
    if (begin <= 2 * kPage && 2 * kPage < end) co_await unlocked.Wait();
  };
  a_->fs().SetInvalidation(std::move(invalidation));
  CutOff();
  harness_.world.RunFor(kLongAfter);
  using Pieces = std::set<std::pair<uint64_t, uint64_t>>;
  EXPECT_EQ(pieces, (Pieces{{0, 2 * kPage}, {2 * kPage, 3 * kPage}, {3 * kPage, UINT64_MAX}}));
  pieces.clear();
  auto waits = Begin(a_->fs().HoldPages(file, 7 * kPage, kPage, client::PageUse::kFill));
  harness_.world.RunFor(1s);
  EXPECT_EQ(pieces, (Pieces{{8 * kPage, UINT64_MAX}})) << "another one that nobody should wait for";
}

// A write that is under way when the leases run out is not acknowledged either, as long as it may be lost.
TEST_F(Expiry, AWriteThatWaitedIsAnsweredWhenTheLeasesAreGoodAgain) {
  HandlePtr file = a_->Create("f");
  a_->Write(file, 0, Pattern(1, 4 * kMiB));
  ASSERT_TRUE(a_->Fsync(file).ok());
  for (int oss : {harness_.cluster.oss(0), harness_.cluster.oss(1)})
    harness_.cluster.Crash(oss, sim::Loss::kProcess);
  harness_.world.RunFor(1s);
  CutOff();
  const std::string data = Pattern(2, 64 * kMiB);  // more than space is granted for: it waits for the OSTs
  const std::span<const std::byte> piece = std::as_bytes(std::span(data));
  auto written = Begin(a_->fs().Write(file, 0, std::span(&piece, 1)));
  harness_.world.RunFor(5s);
  ASSERT_FALSE(written->has_value());
  harness_.world.RunFor(kLongAfter);
  for (int oss : {harness_.cluster.oss(0), harness_.cluster.oss(1)}) harness_.cluster.Boot(oss);
  harness_.world.RunFor(kLongAfter);
  EXPECT_FALSE(written->has_value());
  harness_.network.Heal();
  ASSERT_TRUE(harness_.RunUntil([&] { return written->has_value(); }));
  EXPECT_THAT((*written)->status(), HasErrno(EIO));  // evicted meanwhile
}

// As after an upgrade of the servers: this client will never be let in. The one before may come back, though,
// while the session lasts.
TEST_F(Expiry, AnMdsOfAnotherVersionIsWaitedForNoLongerThanTheSessionLasts) {
  HandlePtr file = a_->Create("f");
  a_->Write(file, 0, "held back");
  bool another = true;
  a_->before_reply = [&another](const proto::MetadataRequest& request) -> Task<Status> {
    if (!another || !request.has_connect()) co_return OkStatus();
    co_return ErrnoError(EPROTO, "the client speaks version 3 of the protocol, this server version 4");
  };
  const auto restart = [this] {
    harness_.cluster.Crash(harness_.cluster.mds(), sim::Loss::kProcess);
    harness_.cluster.Boot(harness_.cluster.mds());
  };
  restart();
  harness_.world.RunFor(3s);
  another = false;
  EXPECT_EQ(a_->Read(file, 0, 10), "held back");
  EXPECT_TRUE(a_->Fsync(file).ok());
  another = true;
  restart();
  auto waits = Begin(a_->fs().Fsync(file, false));
  harness_.world.RunFor(kLongAfter);
  auto stat = Begin(a_->fs().Getattr(a_->caller, kRootFid, nullptr));
  harness_.world.RunFor(10s);
  ASSERT_TRUE(waits->has_value());
  ASSERT_TRUE(stat->has_value());
  EXPECT_THAT((*stat)->status(), HasErrno(EPROTO));
  another = false;
  harness_.world.RunFor(kLongAfter);
  EXPECT_EQ(a_->Read(a_->OpenName("f"), 0, 10), "held back");
  another = true;
  restart();
  harness_.world.RunFor(kLongAfter);
  (void)a_->Unmount();  // ends
}

TEST_F(Expiry, SoftMountsFail) {
  HandlePtr file = a_->Create("f");
  a_->Write(file, 0, "old");
  CutOff();
  harness_.world.RunFor(kLongAfter);
  auto read = Begin(a_->fs().Read(file, 0, 10));
  harness_.world.RunFor(100s);
  EXPECT_FALSE(read->has_value());
  ASSERT_TRUE(harness_.RunUntil([&] { return read->has_value(); }));
  EXPECT_THAT((*read)->status(), HasErrno(EIO));
}

// --- servers that do not come back ---

// Nothing is held back for the dead OST, but space on it is granted.
TEST_F(Expiry, ADeadOstKeepsNobodyFromMountingOrUnmounting) {
  HandlePtr file = a_->Create("f");
  a_->Write(file, 0, Pattern(1, 4 * kMiB));
  ASSERT_TRUE(a_->Fsync(file).ok());
  harness_.cluster.Crash(harness_.cluster.oss(0), sim::Loss::kProcess);
  Duration begin = harness_.world.clock().Now();
  auto b = harness_.Mount();
  EXPECT_LT(harness_.world.clock().Now() - begin, 5s);
  begin = harness_.world.clock().Now();
  EXPECT_TRUE(a_->Unmount().ok());
  EXPECT_TRUE(b->Unmount().ok());
  EXPECT_LT(harness_.world.clock().Now() - begin, 10s);
}

TEST_F(Expiry, UnmountEndsAtOnceWithoutTheMdsIfNothingIsHeldBack) {
  HandlePtr file = a_->Create("f");
  a_->Write(file, 0, "sent");
  ASSERT_TRUE(a_->Fsync(file).ok());
  harness_.cluster.Crash(harness_.cluster.mds(), sim::Loss::kProcess);
  harness_.world.RunFor(1s);
  const Duration begin = harness_.world.clock().Now();
  EXPECT_TRUE(a_->Unmount().ok());
  EXPECT_LT(harness_.world.clock().Now() - begin, 10s);
}

TEST_F(Expiry, UnmountSaysWhatIsLostWithADeadServer) {
  HandlePtr file = a_->Create("f", O_RDWR, a_->Mkdir("dir"));
  a_->Write(file, 0, Pattern(1, 4 * kMiB));
  for (int oss : {harness_.cluster.oss(0), harness_.cluster.oss(1)})
    harness_.cluster.Crash(oss, sim::Loss::kProcess);
  const Duration begin = harness_.world.clock().Now();
  const Status ended = a_->Unmount();
  EXPECT_THAT(ended, HasErrno(EIO));
  EXPECT_THAT(std::string(ended.message()), testing::HasSubstr("the last changes of 1 files"));
  EXPECT_THAT(std::string(ended.message()), testing::HasSubstr("/dir/f"));
  EXPECT_GE(harness_.world.clock().Now() - begin, harness_.options.client.unmount_patience);
  EXPECT_LT(harness_.world.clock().Now() - begin, harness_.options.client.unmount_patience + 30s);
}

// Operations that wait when the servers go: a write, the close after it, the sending of what was written, the
// close at the MDS if that knows of the handle.
TEST_F(Expiry, UnmountEndsWhenEveryServerHasDied) {
  for (const bool told : {false, true}) {
    for (const Duration frozen : {0ms, 2ms, 1000ms, 9000ms}) {
      for (const Duration dead : {0s, 1s, 20s, 29s, 30s, 31s, 40s}) {
        SCOPED_TRACE(
            absl::StrFormat("told %d, frozen for %d ms, dead for %d s", told, frozen / 1ms, dead / 1s));
        UnmountAfter(told, frozen, dead);
      }
    }
  }
}

// Data that is held back for a dead OST keeps neither another client from the rest of the directory nor this
// mount's programs from the cache.
TEST_F(Expiry, OperationsGoOnWhileARevocationWaitsForADeadOst) {
  HandlePtr file = a_->Create("f");
  a_->Write(file, 0, Pattern(1, 4 * kMiB));
  for (int oss : {harness_.cluster.oss(0), harness_.cluster.oss(1)})
    harness_.cluster.Crash(oss, sim::Loss::kProcess);
  const Duration begin = harness_.world.clock().Now();
  auto b = harness_.Mount();
  EXPECT_TRUE(b->Mkdir("of b"));
  EXPECT_LT(harness_.world.clock().Now() - begin, 5s);
  EXPECT_TRUE(a_->Lookup("f").ok());
  EXPECT_TRUE(a_->Lookup("of b").ok());
  EXPECT_LT(harness_.world.clock().Now() - begin, 10s);
  harness_.world.RunFor(60s);
  for (int oss : {harness_.cluster.oss(0), harness_.cluster.oss(1)}) harness_.cluster.Boot(oss);
  EXPECT_TRUE(b->Read(b->OpenName("f"), 0, kMiB) == Pattern(1, 4 * kMiB).substr(0, kMiB));
}

// More than one message can say.
TEST_F(Expiry, ManyOpenFilesAreReportedInParts) {
  constexpr int kFiles = 9000;
  std::vector<HandlePtr> files;
  for (int i = 0; i < kFiles; ++i) files.push_back(a_->Create("f" + std::to_string(i)));
  a_->Write(files.back(), 0, "alive");
  auto b = harness_.Mount();
  EXPECT_TRUE(b->Lookup("f0").ok());
  EXPECT_GE(a_->requests["reclaim"], 3);
  for (int i : {0, kFiles / 2, kFiles - 1}) {
    ASSERT_TRUE(b->Await(b->fs().Unlink(b->caller, kRootFid, "f" + std::to_string(i))).ok());
  }
  harness_.world.RunFor(10s);
  EXPECT_EQ(a_->Read(files.back(), 0, 10), "alive");
  const int before = a_->requests["reclaim"];
  harness_.cluster.Crash(harness_.cluster.mds(), sim::Loss::kProcess);
  harness_.cluster.Boot(harness_.cluster.mds());
  EXPECT_EQ(a_->Read(files.back(), 0, 10), "alive");
  EXPECT_GE(a_->requests["reclaim"], before + 3);
}

}  // namespace
}  // namespace nacre::client
