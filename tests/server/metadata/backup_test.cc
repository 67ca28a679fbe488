// A backup of a running MDT, and an MDT made from it: what is in it, and that going back in time does no
// harm.
#include "server/metadata/backup.h"

#include <sstream>

#include "common/lease_time.h"
#include "rpc/fence.h"
#include "server/metadata/check.h"
#include "server/metadata/id_allocator.h"
#include "server/metadata/keys.h"
#include "server/metadata/restore.h"
#include "tests/common/await.h"
#include "tests/server/metadata/harness.h"

namespace nacre::mds {
namespace {

constexpr WallTime kRestoredAt{kCountedFrom + 50'000'000, 0};

std::string TakeAll(MdtBackups& backups) {
  auto source = backups.BeginBackup();
  EXPECT_TRUE(source.ok()) << source.status();
  std::string all;
  while (true) {
    auto piece = (*source)->Next();
    EXPECT_TRUE(piece.ok()) << piece.status();
    if (!piece->has_value()) return all;
    all += **piece;
  }
}

StatusOr<Restored> Verify(const std::string& bytes, WallTime now = kRestoredAt) {
  std::istringstream in(bytes);
  BackupReader reader(in);
  return VerifyBackup(reader, now);
}

StatusOr<Restored> RestoreInto(KvStore& store, const std::string& bytes, WallTime now = kRestoredAt) {
  std::istringstream in(bytes);
  BackupReader reader(in);
  return Await(RestoreMdt(store, reader, now));
}

class BackupTest : public testing::Test {
 protected:
  std::string Backup() { return TakeAll(backups); }

  // The MDS and its store are lost; another one begins with what the backup has.
  void LoseAndRestore(const std::string& backup, WallTime now = kRestoredAt) {
    harness.Crash();
    Empty(harness.store);
    auto restored = RestoreInto(harness.store, backup, now);
    ASSERT_TRUE(restored.ok()) << restored.status();
    harness.Start();
    harness.RegisterOsts();
  }

  static void Empty(MemKv& store) {
    KvBatch batch;
    const std::vector<KvEntry> all = *store.Scan({}, {}, 1'000'000);
    for (const KvEntry& entry : all) batch.Erase(entry.key);
    ASSERT_TRUE(Await(store.Commit(std::move(batch))).ok());
  }

  uint64_t ObjectsOf(Fid fid) {
    return ParseInode(fid, *harness.store.Get(FidKey(Table::kInode, fid)))->layout.object_sequence;
  }

  Harness harness;
  MdtBackups backups{harness.store, harness.clock};
};

TEST_F(BackupTest, HasWhatWasThereWhenItBeganAndNothingElse) {
  TestClient client(harness);
  const Fid directory = FidOf(client.Mkdir(kRootFid, "d"));
  const Fid file = FidOf(client.Create(directory, "file"));
  auto source = backups.BeginBackup();
  ASSERT_TRUE(source.ok()) << source.status();
  std::string bytes = **(*source)->Next();
  ASSERT_THAT(client.Rename(directory, "file", kRootFid, "moved"), IsOk());
  ASSERT_THAT(client.Create(kRootFid, "later"), IsOk());
  for (auto piece = (*source)->Next(); piece->has_value(); piece = (*source)->Next()) bytes += **piece;
  LoseAndRestore(bytes);
  TestClient after(harness);
  EXPECT_EQ(FidOf(after.Lookup(directory, "file")), file);
  EXPECT_THAT(after.List(kRootFid), testing::ElementsAre("d"));
  harness.Crash();
  auto found = Await(CheckMdt(harness.store, false));
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_TRUE(found->clean()) << found->problems[0];
}

TEST_F(BackupTest, TheHeaderSaysOfWhat) {
  const std::string backup = Backup();
  auto found = Verify(backup);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->header.made_seconds, harness.clock.Wall().seconds);
  EXPECT_EQ(found->header.mdt_version, kFormatVersion);
  EXPECT_EQ(found->header.cluster_uuid,
            ParseSuperblock(*harness.store.Get(TableKey(Table::kSuperblock)))->cluster_uuid);
  EXPECT_EQ(found->entries, harness.store.Scan({}, {}, 1'000'000)->size());
}

TEST_F(BackupTest, ADamagedOrIncompleteOneIsRefused) {
  TestClient client(harness);
  ASSERT_THAT(client.Create(kRootFid, "file"), IsOk());
  const std::string backup = Backup();
  ASSERT_TRUE(Verify(backup).ok());
  for (size_t i = 0; i < backup.size(); ++i) {
    std::string damaged = backup;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
    EXPECT_FALSE(Verify(damaged).ok()) << "byte " << i;
    EXPECT_FALSE(Verify(backup.substr(0, i)).ok()) << "cut at " << i;
  }
  EXPECT_FALSE(Verify(backup + "x").ok());
}

// Whole blocks that are exchanged, missing or from another backup match their own checksums.
TEST_F(BackupTest, BlocksInAnotherOrderAreRefused) {
  BackupEncoder encoder;
  const std::string header = encoder.Begin({"uuid", 0, kFormatVersion, 1, "1"});
  const std::string first = encoder.Block({{"a", "1"}}), second = encoder.Block({{"b", "2"}});
  const std::string end = encoder.End();
  EXPECT_TRUE(Verify(header + first + second + end).ok());
  EXPECT_TRUE(absl::IsDataLoss(Verify(header + second + first + end).status()));
  EXPECT_TRUE(absl::IsDataLoss(Verify(header + first + end).status()));
  EXPECT_TRUE(absl::IsDataLoss(Verify(header + first + second).status()));
  EXPECT_TRUE(absl::IsDataLoss(Verify(first + second + end).status()));
}

TEST_F(BackupTest, OnlyAFewAtOnce) {
  auto first = backups.BeginBackup(), second = backups.BeginBackup();
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(ToErrno(backups.BeginBackup().status()), EBUSY);
  first->reset();
  EXPECT_TRUE(backups.BeginBackup().ok());
}

TEST_F(BackupTest, NothingIsRestoredOverAnMdtOrWithAClockThatIsBehind) {
  const std::string backup = Backup();
  EXPECT_EQ(ToErrno(RestoreInto(harness.store, backup).status()), EEXIST);
  MemKv empty;
  EXPECT_TRUE(absl::IsFailedPrecondition(RestoreInto(empty, backup, harness.clock.Wall()).status()));
  EXPECT_TRUE(empty.Scan({}, {}, 1)->empty());
}

TEST_F(BackupTest, ARestoreThatWasNotFinishedIsNoMdt) {
  TestClient client(harness);
  for (int i = 0; i < 100; ++i) ASSERT_THAT(client.Create(kRootFid, absl::StrCat("file", i)), IsOk());
  const std::string backup = Backup();
  harness.Crash();
  Empty(harness.store);
  int commits = 0;
  harness.store.SetCommitHook(
      [&](const KvBatch&) { return ++commits > 2 ? ErrnoError(ENOSPC, "full") : OkStatus(); });
  EXPECT_EQ(ToErrno(RestoreInto(harness.store, backup).status()), ENOSPC);
  harness.store.SetCommitHook(nullptr);
  EXPECT_FALSE(harness.store.Scan({}, {}, 10)->empty());
  MetadataEnvironment environment{harness.context.get_executor(), harness.clock, harness.random,
                                  harness.store, harness.osts};
  auto started = harness.Await(MetadataServer::Start(environment, harness.options));
  EXPECT_THAT(std::string(started.status().message()), testing::HasSubstr("was not finished"));
  EXPECT_FALSE(Await(CheckMdt(harness.store, true)).ok());
}

// Every number that was given out after the backup, of which it knows nothing, is given out to nobody again;
// nor after the same backup was restored a second time.
TEST_F(BackupTest, NumbersAreNotGivenTwice) {
  std::set<Fid> fids;
  std::set<uint64_t> objects, sessions, own;
  auto use = [&] {
    for (int start = 0; start < 3; ++start) {
      TestClient client(harness);
      EXPECT_TRUE(sessions.insert(client.session).second) << client.session;
      EXPECT_TRUE(own.insert(SessionSequence(client.session)).second);
      EXPECT_NE(SessionSequence(client.session), 0u) << "it has FIDs to give";
      for (int i = 0; i < 3; ++i) {
        const auto made = client.Create(kRootFid, absl::StrCat("file", fids.size()));
        ASSERT_THAT(made, IsOk());
        EXPECT_TRUE(fids.insert(FidOf(made)).second) << FidOf(made).ToString();
        EXPECT_EQ(SessionOfSequence(FidOf(made).sequence), 0u);
        EXPECT_TRUE(objects.insert(ObjectsOf(FidOf(made))).second);
      }
      client.peer->Close();
      harness.Restart();
      harness.RegisterOsts();
      harness.RunFor(std::chrono::seconds(60));
    }
  };
  use();
  const std::string backup = Backup();
  use();
  LoseAndRestore(backup);
  use();
  const WallTime later{kRestoredAt.seconds + 100, 0};
  LoseAndRestore(backup, later);
  use();
}

// By a clock that was ahead the counters have come farther than this one says: what was handed out since the
// backup is not known.
TEST_F(BackupTest, AClockThatIsBehindThatOfAnEarlierRestoreIsRefused) {
  const WallTime ahead{kRestoredAt.seconds + 1'000'000, 0};
  LoseAndRestore(Backup(), ahead);
  const std::string backup = Backup();
  MemKv store, right;
  EXPECT_TRUE(absl::IsFailedPrecondition(RestoreInto(store, backup).status()));
  EXPECT_TRUE(RestoreInto(right, backup, {ahead.seconds + 100, 0}).ok());
}

TEST_F(BackupTest, ClientsOfBeforeAreToldThatTheirSessionsHaveEnded) {
  TestClient known(harness);
  const std::string backup = Backup();
  TestClient unknown(harness);
  LoseAndRestore(backup);
  for (TestClient* client : {&known, &unknown}) {
    const auto reply = client->Connect();
    EXPECT_THAT(reply, Fails(ESTALE));
    EXPECT_THAT(reply.status().message(), testing::HasSubstr("has ended"));
  }
}

TEST_F(BackupTest, NobodyIsLetInWhileAClientOfBeforeMayStillBeServed) {
  const std::string backup = Backup();
  TestClient before(harness);
  LoseAndRestore(backup);
  const Duration start = harness.clock.Now();
  TestClient after(harness);
  EXPECT_THAT(after.Getattr(kRootFid), IsOk());
  EXPECT_GE(harness.clock.Now() - start, harness.options.lease);
  EXPECT_LE(harness.clock.Now() - start, 2 * harness.options.lease);
  EXPECT_GT(after.session, before.session);
  for (OstIndex ost = 0; ost < 4; ++ost) {
    ASSERT_EQ(harness.osts.fenced[ost].size(), 1u);
    const SessionId fence = *harness.osts.fenced[ost].begin();
    EXPECT_TRUE(IsAllBelow(fence));
    EXPECT_GT(FirstServed(fence), before.session);
    EXPECT_LE(FirstServed(fence), after.session);
  }
}

TEST_F(BackupTest, AnOstThatIsAwayRefusesThemBeforeItCountsAsUp) {
  const std::string backup = Backup();
  harness.osts.away.insert(2);
  harness.Crash();
  Empty(harness.store);
  ASSERT_TRUE(RestoreInto(harness.store, backup).ok());
  harness.Start();
  TestClient after(harness);
  harness.Restart();  // what it has not told is not forgotten
  EXPECT_TRUE(harness.osts.fenced[2].empty());
  harness.osts.away.clear();
  harness.RunFor(std::chrono::seconds(5));
  ASSERT_EQ(harness.osts.fenced[2].size(), 1u);
  EXPECT_TRUE(IsAllBelow(*harness.osts.fenced[2].begin()));
}

// A file that was being written at the time: its objects are longer than the MDT of then knows.
TEST_F(BackupTest, SizesComeFromTheNotesOfTheOsts) {
  TestClient client(harness);
  const Fid file = FidOf(client.Create(kRootFid, "file"));
  proto::MetadataRequest request;
  *request.mutable_move_out()->mutable_fid() = ToProto(file);
  const auto moved = client.Call(request);
  ASSERT_THAT(moved, IsOk());
  const std::string backup = Backup();
  const Inode inode = *ParseInode(file, *harness.store.Get(FidKey(Table::kInode, file)));
  const OstIndex ost = StripeGroups(inode.layout)[0];
  const ObjectId object{inode.layout.object_sequence, 0};
  harness.osts.objects[ost][object] = {std::string(5000, 'x'), file};
  harness.osts.grown[ost].insert({client.session, object});
  LoseAndRestore(backup);
  TestClient after(harness);
  EXPECT_EQ(after.Getattr(file).attr().attr().size(), 5000u);
}

// Requests that a client of before still sends by a layout from between the backup and the restore must not
// pass for ones by the present layout.
TEST_F(BackupTest, LayoutsGetOtherGenerationsThanSinceTheBackup) {
  auto generation_after_truncation = [this](Fid file) {
    TestClient client(harness);
    EXPECT_THAT(client.Truncate(file, 0), IsOk());
    return ParseInode(file, *harness.store.Get(FidKey(Table::kInode, file)))->layout.generation;
  };
  Fid file;
  {
    TestClient client(harness);
    file = FidOf(client.Create(kRootFid, "file"));
    proto::MetadataRequest request;
    *request.mutable_move_out()->mutable_fid() = ToProto(file);
    ASSERT_THAT(client.Call(request), IsOk());
    ASSERT_THAT(client.UpdateSize(file, 5000, 16), IsOk());
  }
  const std::string backup = Backup();
  const uint32_t since = generation_after_truncation(file);
  LoseAndRestore(backup);
  EXPECT_GT(generation_after_truncation(file), since);
}

}  // namespace
}  // namespace nacre::mds
