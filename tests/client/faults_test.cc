// Servers that go away and come back, bytes that change on the way, disks that fill up.
#include <cerrno>
#include <optional>

#include "client/inode.h"
#include "common/cancellation.h"
#include "tests/client/harness.h"

namespace nacre::client {
namespace {

class Faults : public testing::TestWithParam<bool> {
 protected:
  static HarnessOptions MakeOptions(bool caching) {
    HarnessOptions options;
    options.client.caching = caching;
    return options;
  }
  // Restarts a server after 5 s while `work` goes on.
  void RestartSoon(Harness& harness, int node) {
    harness.cluster.Crash(node, sim::Loss::kProcess);
    harness.world.clock().At(5s, [&harness, node] { harness.cluster.Boot(node); });
  }
};

INSTANTIATE_TEST_SUITE_P(, Faults, testing::Bool(),
                         [](const auto& info) { return info.param ? "WithLease" : "WithoutLease"; });

TEST_P(Faults, AnAbsentServerOnlyDelays) {
  Harness harness(MakeOptions(GetParam()));
  auto client = harness.Mount();
  HandlePtr file = client->Create("f");
  HandlePtr gone = client->Create("gone");
  client->Write(gone, 0, "orphan");
  ASSERT_TRUE(client->Await(client->fs().Unlink(client->caller, kRootFid, "gone")).ok());
  std::string data;
  for (int node : {0, 1, 2, 0}) {
    RestartSoon(harness, node);
    for (int i = 0; i < 4; ++i) {
      std::string piece = Pattern(data.size(), 700'000);
      client->Write(file, data.size(), piece);
      data += piece;
    }
    HandlePtr made = client->Create("made" + std::to_string(data.size()));
    ASSERT_TRUE(client->Fsync(file).ok());
    EXPECT_EQ(client->Read(file, 0, data.size()).size(), data.size());
    EXPECT_TRUE(client->Close(made).ok());
    harness.world.RunFor(10s);
  }
  EXPECT_EQ(client->Read(gone, 0, 100), "orphan");
  ASSERT_TRUE(client->Unmount().ok());
  client = harness.Mount();
  HandlePtr again = client->OpenName("f");
  for (size_t at = 0; at < data.size(); at += kMiB) {
    ASSERT_EQ(client->Read(again, at, kMiB), data.substr(at, kMiB)) << at;
  }
  EXPECT_EQ(client->List().size(), 5u);
}

// A truncation that waits for a dead OST is the oldest unanswered mutation for as long as that is away. The
// MDS must not keep the answers to all that come behind it: there are only so many that it takes.
TEST(Answers, ThoseBehindAMutationThatWaitsAreForgotten) {
  Harness harness;
  Options options = harness.options.client;
  options.caching = false;
  auto client = harness.Mount(options);
  HandlePtr file = client->Create("f");
  client->Write(file, 0, Pattern(1, kMiB));
  for (int oss : {0, 1}) harness.cluster.Crash(harness.cluster.oss(oss), sim::Loss::kProcess);
  auto truncated = std::make_shared<std::optional<Status>>();
  Spawn(
      client->process()->executor(),
      [](Mounted* client, HandlePtr file) -> Task<Status> {
        SetAttributes set;
        set.size = 5000;
        const Fid by_handle;
        auto done = co_await client->fs().Setattr(client->caller, by_handle, set, file);
        co_return done.status();
      }(client.get(), file),
      [truncated](Status status) { *truncated = std::move(status); });
  for (int i = 0; i < 4000; ++i) client->Mkdir(absl::StrCat("d", i));
  EXPECT_FALSE(truncated->has_value());
  const std::string replies(1, 0x21);
  EXPECT_LT(harness.cluster.mdt().Scan(replies, PrefixEnd(replies), 10000)->size(), 2200u);
  for (int oss : {0, 1}) harness.cluster.Boot(harness.cluster.oss(oss));
  EXPECT_TRUE(harness.RunUntil([&] { return truncated->has_value(); }));
  EXPECT_TRUE((*truncated)->ok()) << **truncated;
}

// Many of whoever reads from a dead server are killed: what they waited with is free again.
TEST_P(Faults, CancelledReadsKeepNothing) {
  HarnessOptions options = MakeOptions(GetParam());
  options.client.cache_bytes = 8 * kMiB;
  Harness harness(options);
  auto client = harness.Mount();
  HandlePtr file = client->Create("f"), other = client->Create("other");
  const std::string data = Pattern(0, 4 * kMiB);
  for (uint64_t at = 0; at < data.size(); at += kMiB) client->Write(file, at, data.substr(at, kMiB));
  client->Write(other, 0, data.substr(0, kMiB));
  ASSERT_TRUE(client->Unmount().ok());
  client = harness.Mount();
  file = client->OpenName("f");
  for (int node : {1, 2}) harness.cluster.Crash(node, sim::Loss::kProcess);
  for (int i = 0; i < 20; ++i) {
    auto cancellation = std::make_shared<Cancellation>();
    std::optional<StatusOr<ReadResult>> result;
    Spawn(
        client->process()->executor(), client->fs().Read(file, i % 4 * kMiB, kMiB),
        [&](StatusOr<ReadResult> read) { result = std::move(read); }, cancellation);
    harness.world.RunFor(100ms);
    EXPECT_FALSE(result.has_value());
    cancellation->Cancel(ErrnoError(EINTR, "killed"));
    harness.world.RunFor(options.client.retry.call_timeout + 3s);
    ASSERT_TRUE(result.has_value()) << i;
    EXPECT_THAT(result->status(), HasErrno(EINTR));
  }
  for (int node : {1, 2}) harness.cluster.Boot(node);
  EXPECT_EQ(client->Read(file, 0, kMiB), data.substr(0, kMiB));
}

TEST_P(Faults, CancelledQuestionsToADeadMdsEnd) {
  Harness harness(MakeOptions(GetParam()));
  auto client = harness.Mount();
  HandlePtr file = client->Create("f");
  harness.cluster.Crash(0, sim::Loss::kProcess);
  harness.world.RunFor(60s);
  auto cancellation = std::make_shared<Cancellation>();
  std::optional<Status> asked, changed;
  Spawn(
      client->process()->executor(), client->fs().Statfs(client->caller),
      [&](StatusOr<proto::StatfsReply> reply) { asked = reply.status(); }, cancellation);
  Spawn(
      client->process()->executor(),
      client->fs().SetXattr(client->caller, file->inode->fid, "user.a", "1", 0),
      [&](Status status) { changed = std::move(status); }, cancellation);
  harness.world.RunFor(10s);
  EXPECT_FALSE(asked.has_value());
  EXPECT_FALSE(changed.has_value());
  cancellation->Cancel(ErrnoError(EINTR, "killed"));
  harness.world.RunFor(1s);
  ASSERT_TRUE(asked.has_value());
  EXPECT_THAT(*asked, HasErrno(EINTR));
  ASSERT_TRUE(changed.has_value()) << "it was not sent yet";
  EXPECT_THAT(*changed, HasErrno(EINTR));
  harness.cluster.Boot(0);
  ASSERT_TRUE(client->Fsync(file).ok());
  EXPECT_TRUE(client->Close(file).ok());
}

// It would bring back an object that was destroyed when the file was closed.
TEST(LastClose, DoesNotOvertakeAWriteUnderWay) {
  Harness harness;
  auto free = [&] {  // of a mount that holds no grants
    auto client = harness.Mount();
    harness.world.RunFor(5s);  // heartbeats tell the MDS
    uint64_t bytes = client->Await(client->fs().Statfs(client->caller))->free_bytes();
    EXPECT_TRUE(client->Unmount().ok());
    return bytes;
  };
  const uint64_t before = free();
  {
    auto client = harness.Mount();
    HandlePtr file = client->Create("f");
    client->Write(file, 0, Pattern(1, 5 * kMiB));  // brings grants, so that the next one is held back
    ASSERT_TRUE(client->Fsync(file).ok());
    ASSERT_TRUE(client->Await(client->fs().Unlink(client->caller, kRootFid, "f")).ok());
    client->Write(file, 0, Pattern(2, 300'000));
    for (int oss : {harness.cluster.oss(0), harness.cluster.oss(1)}) {
      harness.network.Cut(client->process()->node(), oss);
      harness.network.Cut(oss, client->process()->node());
    }
    harness.world.RunFor(10s);  // it is on its way, again and again
    ASSERT_TRUE(client->Close(file).ok());
    harness.world.RunFor(5s);  // for the MDS to destroy it, if it may
    harness.network.Heal();
    harness.world.RunFor(60s);
    ASSERT_TRUE(client->Unmount().ok());
  }
  EXPECT_EQ(free(), before);
}

TEST_P(Faults, BrokenStreamsRepeatNothing) {
  Harness harness(MakeOptions(GetParam()));
  harness.network.faults().break_one_in = 30;
  auto client = harness.Mount();
  for (int i = 0; i < 40; ++i) {
    std::string name = "f" + std::to_string(i);
    HandlePtr file = client->Create(name, O_RDWR | O_EXCL);  // EEXIST if it were carried out twice
    ASSERT_NE(file, nullptr);
    client->Write(file, 0, name);
    EXPECT_TRUE(client->Close(file).ok());
    ASSERT_TRUE(
        client->Await(client->fs().Rename(client->caller, kRootFid, name, kRootFid, "g" + name, 0)).ok());
  }
  harness.network.faults().break_one_in = 0;
  EXPECT_EQ(client->List().size(), 40u);
}

TEST_P(Faults, ChangedBytesAreNeverReturned) {
  Harness harness(MakeOptions(GetParam()));
  auto client = harness.Mount();
  const std::string data = Pattern(1, 4 * kMiB);
  HandlePtr file = client->Create("f", O_RDWR | O_DIRECT);
  client->Write(file, 0, data);
  harness.network.faults().corrupt_one_in = 4;
  int good = 0, bad = 0;
  for (int i = 0; i < 100; ++i) {
    auto result = client->Await(client->fs().Read(file, static_cast<uint64_t>(i) * 40'000, 40'000));
    if (!result.ok()) {
      EXPECT_THAT(result.status(), HasErrno(EIO));
      ++bad;
      continue;
    }
    std::string bytes;
    for (auto piece : result->pieces) bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
    EXPECT_EQ(bytes, data.substr(static_cast<size_t>(i) * 40'000, 40'000));
    ++good;
  }
  // The network changes bytes at most once a second, so the repetition after a mismatch always gets good
  // ones.
  EXPECT_EQ(good, 100);
  EXPECT_EQ(bad, 0);
}

TEST_P(Faults, NoAcceptedWriteIsLostOnAFullOst) {
  HarnessOptions options = MakeOptions(GetParam());
  options.osses = 1;
  options.osts_per_oss = 1;
  options.ost_blocks = 4096;  // 16 MiB
  Harness harness(options);
  auto client = harness.Mount();
  HandlePtr file = client->Create("f");
  std::string accepted;
  Status refused;
  for (int i = 0; i < 400 && refused.ok(); ++i) {
    std::string piece = Pattern(static_cast<uint64_t>(i), 100'000);
    auto written = client->TryWrite(file, accepted.size(), piece);
    if (!written.ok()) refused = written.status();
    if (written.ok()) accepted += piece.substr(0, *written);
  }
  EXPECT_THAT(refused, HasErrno(ENOSPC));
  EXPECT_GT(accepted.size(), 8 * kMiB);
  EXPECT_TRUE(client->Fsync(file).ok());
  EXPECT_TRUE(client->Close(file).ok());
  ASSERT_TRUE(client->Unmount().ok());
  client = harness.Mount();
  file = client->OpenName("f");
  for (size_t at = 0; at < accepted.size(); at += kMiB) {
    ASSERT_EQ(client->Read(file, at, kMiB), accepted.substr(at, kMiB)) << at;
  }
  // Space comes back with the file.
  EXPECT_TRUE(client->Close(file).ok());
  ASSERT_TRUE(client->Await(client->fs().Unlink(client->caller, kRootFid, "f")).ok());
  harness.world.RunFor(30s);
  file = client->Create("again");
  client->Write(file, 0, Pattern(3, 4 * kMiB));
  EXPECT_TRUE(client->Fsync(file).ok());
}

TEST_P(Faults, SoftMountsGiveUp) {
  HarnessOptions options = MakeOptions(GetParam());
  options.client.retry.hard = false;
  options.client.retry.soft_timeout = 10s;
  Harness harness(options);
  auto client = harness.Mount();
  HandlePtr file = client->Create("f");
  client->Write(file, 0, Pattern(1, 100'000));
  ASSERT_TRUE(client->Fsync(file).ok());
  harness.cluster.Crash(0, sim::Loss::kProcess);
  EXPECT_THAT(client->Await(client->fs().Statfs(client->caller)).status(), HasErrno(EIO));
  harness.cluster.Boot(0);
  harness.world.RunFor(60s);
  EXPECT_EQ(client->Read(file, 0, 10), Pattern(1, 100'000).substr(0, 10));
}

}  // namespace
}  // namespace nacre::client
