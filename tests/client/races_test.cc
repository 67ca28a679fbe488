// Two mounts at one file at once: whatever one learns of the other's changes in the middle of an operation,
// the operation comes to an end.
#include <linux/falloc.h>

#include "client/inode.h"
#include "tests/client/harness.h"

namespace nacre::client {
namespace {

constexpr size_t kSize = 300'000;
constexpr int kRounds = 40;

struct Started {
  int begun = 0;
  int ended = 0;
  std::vector<Status> failed;
};

const Status& StatusOf(const Status& status) { return status; }
template <typename T>
const Status& StatusOf(const StatusOr<T>& result) {
  return result.status();
}

template <typename T>
void Begin(const std::shared_ptr<Started>& started, Mounted& mount, Task<T> task) {
  ++started->begun;
  Spawn(mount.process()->executor(), std::move(task), [started](T result) {
    ++started->ended;
    if (Status status = StatusOf(result); !status.ok()) started->failed.push_back(std::move(status));
  });
}

// Every attribute that arrives may take the layout away that an operation under way has just looked at.
TEST(Races, ReadAndFallocateWhileAnotherClientTruncates) {
  Harness harness;
  auto mine = harness.Mount();
  auto theirs = harness.Mount();
  HandlePtr file = mine->Create("f");
  HandlePtr other = theirs->OpenName("f");
  const Fid fid = FromProto(mine->Lookup("f")->attr.fid());
  const std::string data = Pattern(1, kSize);
  const std::span<const std::byte> piece = std::as_bytes(std::span(data.data(), data.size()));
  SetAttributes empty;
  empty.size = 0;
  for (int round = 0; round < kRounds; ++round) {
    theirs->Write(other, 0, data);
    auto pending = std::make_shared<Started>();
    auto racing = std::make_shared<Started>();  // may be told that the file was truncated meanwhile
    Begin(pending, *mine, mine->fs().Read(file, 0, kSize));
    Begin(racing, *mine, mine->fs().Fallocate(file, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, 0, kSize));
    Begin(racing, *mine, mine->fs().Seek(file, 0, SEEK_HOLE));
    Begin(pending, *theirs, theirs->fs().Setattr(theirs->caller, fid, empty, other));
    Begin(pending, *theirs, theirs->fs().Write(other, 0, std::span(&piece, 1)));
    for (int i = 0; i < 20; ++i) {
      Begin(pending, *mine, mine->fs().Getattr(mine->caller, fid, nullptr));
      harness.world.RunFor(std::chrono::microseconds(50 + 17 * round));
    }
    auto done = [&] { return pending->ended == pending->begun && racing->ended == racing->begun; };
    ASSERT_TRUE(harness.RunUntil(done)) << "round " << round;
    EXPECT_THAT(pending->failed, testing::IsEmpty());
    for (const Status& status : racing->failed) EXPECT_THAT(ToErrno(status), testing::AnyOf(EBUSY, ENXIO));
  }
  EXPECT_TRUE(mine->Close(file).ok());
  EXPECT_TRUE(theirs->Close(other).ok());
}

// The open asks the MDS, since the file's content is not known here; whatever the unlink meets, a file that
// was opened can be read.
TEST(Races, OpenAgainstUnlink) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    HarnessOptions options;
    options.seed = seed;
    Harness harness(options);
    auto client = harness.Mount();
    const Fid top = client->Mkdir("top");
    ASSERT_TRUE(client->Close(client->Create("f", O_RDWR, top)).ok());
    HandlePtr file = client->OpenName("f", O_RDWR, top);
    client->Write(file, 0, "bytes");
    ASSERT_TRUE(client->Fsync(file).ok());
    ASSERT_TRUE(client->Close(file).ok());
    ASSERT_TRUE(client->Unmount().ok());
    client = harness.Mount();
    auto known = client->Lookup("top");
    ASSERT_TRUE(known.ok());
    auto directory = client->Await(client->fs().Opendir(client->caller, top));
    ASSERT_TRUE(directory.ok());
    ASSERT_TRUE(client->Await(client->fs().Readdir(client->caller, *directory, 0, 100, true)).ok());
    auto opened = std::make_shared<std::optional<StatusOr<HandlePtr>>>();
    auto unlinked = std::make_shared<std::optional<Status>>();
    const Fid fid = FromProto(client->Lookup("f", top)->attr.fid());
    auto open = [&] {
      Spawn(client->process()->executor(), client->fs().Open(client->caller, fid, O_RDONLY),
            [opened](StatusOr<HandlePtr> handle) { *opened = std::move(handle); });
    };
    auto unlink = [&] {
      Spawn(client->process()->executor(), client->fs().Unlink(client->caller, top, "f"),
            [unlinked](Status status) { *unlinked = std::move(status); });
    };
    if (seed % 2 == 0) unlink();
    open();
    harness.world.RunFor(std::chrono::microseconds(seed * 3));
    if (seed % 2 != 0) unlink();
    ASSERT_TRUE(harness.RunUntil([&] { return opened->has_value() && unlinked->has_value(); }));
    ASSERT_TRUE((*unlinked)->ok());
    harness.world.RunFor(5s);
    if (!(*opened)->ok()) continue;
    EXPECT_EQ(client->Read(***opened, 0, 10), "bytes") << "seed " << seed;
    EXPECT_TRUE(client->Close(***opened).ok());
  }
}

// An operation that waits for a range while the client is evicted may find nothing there any more: it fails,
// with the client's EIO or the OST's ESTALE, and the daemon lives.
TEST(Races, OperationsThatWaitDuringAnEviction) {
  Harness harness;
  auto mine = harness.Mount();
  HandlePtr file = mine->Create("f");
  mine->Write(file, 0, Pattern(1, kSize));
  ASSERT_TRUE(mine->Fsync(file).ok());
  const int node = mine->process()->node();
  for (int other = 0; other < harness.cluster.nodes(); ++other) {
    harness.network.Cut(node, other);
    harness.network.Cut(other, node);
  }
  auto started = std::make_shared<Started>();
  Begin(started, *mine, mine->fs().Fallocate(file, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, 0, kSize));
  harness.world.RunFor(10ms);  // has the range, and waits for the OSTs
  const std::byte byte{1};
  const std::span<const std::byte> piece(&byte, 1);
  Begin(started, *mine, mine->fs().Read(file, 0, kSize));
  Begin(started, *mine, mine->fs().Write(file, 1000, std::span(&piece, 1)));
  auto theirs = harness.Mount();
  (void)theirs->Lookup("f");  // once the other one is evicted
  harness.network.Heal();
  ASSERT_TRUE(harness.RunUntil([&] { return started->ended == started->begun; }));
  ASSERT_FALSE(started->failed.empty());
  for (const Status& status : started->failed)
    EXPECT_THAT(status, testing::AnyOf(HasErrno(EIO), HasErrno(ESTALE)));
}

// Under the lease a write may wait for room in the cache when the session ends. Writes that have been
// acknowledged under the old session are lost, and said so; what waits is not acknowledged any more; and
// nothing of either reaches an object under the next session.
TEST(Races, NothingOfAnOldSessionIsSentUnderTheNext) {
  HarnessOptions options;
  options.client.cache_bytes = 4 * kMiB;
  options.client.dirty_bytes = 1 * kMiB;
  Harness harness(options);
  auto mine = harness.Mount();
  HandlePtr file = mine->Create("f");
  HandlePtr reader = mine->OpenName("f");
  const std::string old = Pattern(1, kSize);
  mine->Write(file, 0, old);
  ASSERT_TRUE(mine->Fsync(file).ok());
  const int node = mine->process()->node();
  for (int other = 0; other < harness.cluster.nodes(); ++other) {
    harness.network.Cut(node, other);
    harness.network.Cut(other, node);
  }
  mine->Write(file, 0, Pattern(2, kMiB));  // acknowledged, by the lease
  const std::string more = Pattern(3, 4096);
  const std::span<const std::byte> piece = std::as_bytes(std::span(more));
  auto started = std::make_shared<Started>();
  Begin(started, *mine, mine->fs().Write(file, 0, std::span(&piece, 1)));
  Begin(started, *mine, mine->fs().Fsync(reader, false));
  auto theirs = harness.Mount();  // once the other one is evicted
  HandlePtr other = theirs->OpenName("f");
  EXPECT_EQ(theirs->Read(other, 0, kMiB), old);
  EXPECT_EQ(started->ended, 0);
  ASSERT_TRUE(theirs->Unmount().ok());
  const std::vector<int> osses = {harness.cluster.oss(0), harness.cluster.oss(1)};
  for (int oss : osses) harness.cluster.Crash(oss, sim::Loss::kProcess);
  harness.network.Heal();  // the client hears of its eviction by the MDS, not by an OSS that refuses it
  harness.world.clock().At(20s, [&] {
    for (int oss : osses) harness.cluster.Boot(oss);
  });
  ASSERT_TRUE(harness.RunUntil([&] { return started->ended == started->begun; }));
  EXPECT_THAT(started->failed, testing::ElementsAre(HasErrno(EIO), HasErrno(EIO)));
  harness.world.RunFor(60s);  // for what is left of it to be sent, if it were
  EXPECT_THAT(mine->TryWrite(file, 0, "more").status(), HasErrno(EIO));
  EXPECT_EQ(mine->Read(mine->OpenName("f"), 0, kMiB), old);
  EXPECT_TRUE(mine->Await(mine->fs().Release(file)).ok());
}

// Write-behind takes many files off its list at once and sends them in parts. A revocation that comes then
// sends the others as well, before what is cached of them goes.
TEST(Races, FilesWhoseTurnHasNotComeAreSentBeforeTheLeaseGoes) {
  Harness harness;
  auto mine = harness.Mount();
  constexpr int kFiles = 200;
  for (int i = 0; i < kFiles; ++i) {
    HandlePtr file = mine->Create("f" + std::to_string(i));
    mine->Write(file, 0, Pattern(static_cast<uint64_t>(i), 40'000));
  }
  // The oldest are due; their servers are slow to answer.
  const int node = mine->process()->node();
  for (int oss = 0; oss < 2; ++oss) {
    harness.network.Cut(node, harness.cluster.oss(oss));
    harness.network.Cut(harness.cluster.oss(oss), node);
  }
  harness.world.RunFor(6s);
  harness.world.clock().At(1s, [&harness] { harness.network.Heal(); });
  auto theirs = harness.Mount();
  for (int i = 0; i < kFiles; ++i) {
    HandlePtr file = theirs->OpenName("f" + std::to_string(i));
    ASSERT_TRUE(theirs->Read(file, 0, 100'000) == Pattern(static_cast<uint64_t>(i), 40'000)) << i;
  }
}

}  // namespace
}  // namespace nacre::client
