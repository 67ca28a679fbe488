// A file's move to other objects: what it leaves where it does not come to its end, and who learns of it.
#include "server/metadata/migration.h"

#include "tests/server/metadata/growth_fixture.h"

namespace nacre::mds {
namespace {

using MigrationTest = GrowthTest;

TEST_F(MigrationTest, GivesTheFileOtherObjectsWithTheSameBytes) {
  const std::string data = Pattern(9 * kMiB + 1000);
  const Fid f = MakeFile("f", data);
  const proto::Layout before = LayoutOf(f);
  ASSERT_THAT(Ask(MigrateRequest(f, 3)), IsOk());
  const proto::Layout after = LayoutOf(f);
  EXPECT_GT(after.generation(), before.generation());
  EXPECT_NE(after.object_sequence(), before.object_sequence());
  ASSERT_EQ(after.components(0).ost_group_size(), 3);
  EXPECT_EQ(after.components(0).stripe_size(), 64u << 10);
  EXPECT_TRUE(ReadObjects(f) == data);
  EXPECT_EQ(Attr(f).size(), data.size());
  client.StayFor(std::chrono::seconds(20));
  EXPECT_EQ(harness.osts.CountObjects(), 3u);
  EXPECT_EQ(Records(Table::kNewObjects), 0u);
  EXPECT_EQ(Records(Table::kMoved), 0u);
  EXPECT_EQ(Records(Table::kDestroyAt), 0u);
}

// Of which a piece may be longer than a request of an OST with several members may be (FakeOsts looks).
TEST_F(MigrationTest, StripesMayBeLarge) {
  const std::string data = Pattern(9 * kMiB + 1000);
  const Fid f = MakeFile("f", data);
  ASSERT_THAT(Ask(MigrateRequest(f, 2, 4 << 20)), IsOk());
  EXPECT_EQ(LayoutOf(f).components(0).stripe_size(), 4u << 20);
  EXPECT_TRUE(ReadObjects(f) == data);
  ASSERT_THAT(Ask(MigrateRequest(f, 2, 1984 << 10)), IsOk());
  EXPECT_TRUE(ReadObjects(f) == data);
}

TEST_F(MigrationTest, HolesStayHoles) {
  const std::string data = Pattern(8 * kMiB, /*holes=*/true);
  const Fid f = MakeFile("f", data);
  harness.osts.bytes_written = 0;
  ASSERT_THAT(Ask(MigrateRequest(f, 4)), IsOk());
  EXPECT_TRUE(ReadObjects(f) == data);
  EXPECT_EQ(harness.osts.bytes_written, data.size() / 2);
}

// Bytes behind the end of a file are those of a write that nobody has been told of.
TEST_F(MigrationTest, NothingComesToLieBehindTheEnd) {
  const Fid f = MakeFile("f", Pattern(kMiB));
  WriteObjects(f, Pattern(2 * kMiB));
  ASSERT_THAT(Ask(MigrateRequest(f, 2)), IsOk());
  EXPECT_TRUE(ReadObjects(f) == Pattern(kMiB));
  EXPECT_THAT(client.Truncate(f, 2 * kMiB), IsOk());
  EXPECT_TRUE(ReadObjects(f) == Pattern(kMiB) + std::string(kMiB, '\0'));
}

TEST_F(MigrationTest, AWriteMeanwhileIsNotLost) {
  const Fid f = MakeFile("f", Pattern(kMiB));
  std::string changed = Pattern(kMiB);
  const proto::Layout old = LayoutOf(f);
  bool written = false;
  harness.osts.on_call = [&](const std::string&, const proto::ObjectRequest& request) {
    if (!request.has_write() || std::exchange(written, true)) return OkStatus();  // it has been read by now
    changed[5] = 'x';
    FakeOsts::Object& object =
        harness.osts.objects[old.components(0).ost_group(0)][{old.object_sequence(), 0}];
    object.data[5] = 'x';
    ++object.version;
    return OkStatus();
  };
  const proto::AdminReply reply = Ask(MigrateRequest(f, 2));
  ASSERT_THAT(reply, IsOk());
  EXPECT_EQ(reply.migrate().attempts(), 2u);
  EXPECT_TRUE(ReadObjects(f) == changed);
  harness.osts.on_call = nullptr;
  client.StayFor(std::chrono::seconds(20));
  EXPECT_EQ(harness.osts.CountObjects(), 2u);
}

TEST_F(MigrationTest, WhoHasWrittenByTheOldLayoutIsToldSo) {
  const Fid f = MakeFile("f", Pattern(kMiB));
  const uint32_t before = LayoutOf(f).generation();
  ASSERT_THAT(Ask(MigrateRequest(f, 2)), IsOk());
  proto::MetadataRequest update;
  *update.mutable_update_size()->mutable_fid() = ToProto(f);
  update.mutable_update_size()->set_size(10);
  update.mutable_update_size()->set_layout_generation(before);
  EXPECT_THAT(client.Call(update), Fails(ESTALE));
  EXPECT_GT(Attr(f).layout_generation(), before);
}

// A client that has asked for the layout just before may be reading by it, and asks again when the read has
// taken a lease's time.
TEST_F(MigrationTest, TheOldObjectsStayForALeasesTime) {
  const Fid f = MakeFile("f", Pattern(kMiB));
  ASSERT_THAT(Ask(MigrateRequest(f, 2)), IsOk());
  client.StayFor(harness.options.lease);
  EXPECT_EQ(Records(Table::kMoved), 1u);
  EXPECT_EQ(harness.osts.CountObjects(), 3u);
  client.StayFor(std::chrono::seconds(5));
  EXPECT_EQ(Records(Table::kMoved), 0u);
  EXPECT_EQ(harness.osts.CountObjects(), 2u);
}

proto::MetadataRequest Drop(const Fid& fid, const proto::Layout& layout) {
  proto::MetadataRequest request;
  proto::DropObjects* drop = request.mutable_drop_objects();
  *drop->mutable_fid() = ToProto(fid);
  drop->set_object_sequence(layout.object_sequence());
  drop->mutable_osts()->CopyFrom(layout.components(0).ost_group());
  return request;
}

TEST_F(MigrationTest, ObjectsThatALateWriteHasMadeAnewGoOnceMore) {
  const Fid f = MakeFile("f", Pattern(kMiB));
  const proto::Layout old = LayoutOf(f);
  const ObjectId object{old.object_sequence(), 0};
  EXPECT_THAT(client.Call(Drop(f, old)), Fails(ESTALE));  // they are the file's
  ASSERT_THAT(Ask(MigrateRequest(f, 2)), IsOk());
  EXPECT_THAT(client.Call(Drop(f, old)), IsOk());  // they go anyway
  EXPECT_EQ(Records(Table::kMoved), 1u);
  client.StayFor(std::chrono::seconds(20));
  ASSERT_EQ(harness.osts.CountObjects(), 2u);
  harness.osts.objects[old.components(0).ost_group(0)][object].data = "late";
  EXPECT_THAT(client.Call(Drop(f, old)), IsOk());
  EXPECT_THAT(client.Call(Drop(f, old)), IsOk());
  EXPECT_EQ(Records(Table::kMoved), 1u);
  client.StayFor(std::chrono::seconds(20));
  EXPECT_EQ(harness.osts.CountObjects(), 2u);
  EXPECT_EQ(Records(Table::kMoved), 0u);
  EXPECT_EQ(Records(Table::kDestroyAt), 0u);
  proto::Layout unknown = old;
  unknown.mutable_components(0)->set_ost_group(0, 99);
  EXPECT_THAT(client.Call(Drop(f, unknown)), Fails(EINVAL));
}

// While the OST is away they stay in the queue, and a second record must not go with the first.
TEST_F(MigrationTest, ObjectsThatAreBeingDestroyedAreNotQueuedOnceMore) {
  const Fid f = MakeFile("f", Pattern(kMiB));
  const proto::Layout old = LayoutOf(f);
  const OstIndex ost = old.components(0).ost_group(0);
  proto::AdminRequest elsewhere = MigrateRequest(f, 1);
  elsewhere.mutable_migrate()->add_osts((ost + 1) % 4);
  ASSERT_THAT(Ask(elsewhere), IsOk());
  harness.osts.refuses[ost] = EIO;
  client.StayFor(std::chrono::seconds(20));
  EXPECT_EQ(Records(Table::kDestroyAt), 1u);
  EXPECT_THAT(client.Call(Drop(f, old)), IsOk());
  client.StayFor(std::chrono::seconds(20));
  EXPECT_EQ(Records(Table::kMoved), 1u);
  EXPECT_EQ(Records(Table::kDestroyAt), 1u);
  harness.osts.refuses.clear();
  client.StayFor(std::chrono::seconds(40));
  EXPECT_EQ(Records(Table::kMoved), 0u);
  EXPECT_EQ(harness.osts.CountObjects(), 1u);
}

// The version of an object says nothing when its OST may have gone back in time.
TEST_F(MigrationTest, ALossOfPowerOfTheOldOstMakesItBeginAnew) {
  const Fid f = MakeFile("f", Pattern(kMiB));
  const OstIndex ost = LayoutOf(f).components(0).ost_group(0);
  bool lost = false;
  harness.osts.on_call = [&](const std::string&, const proto::ObjectRequest& request) {
    if (request.has_write() && !std::exchange(lost, true)) harness.osts.AddLoss(ost);
    return OkStatus();
  };
  const proto::AdminReply reply = Ask(MigrateRequest(f, 2));
  ASSERT_THAT(reply, IsOk());
  EXPECT_EQ(reply.migrate().attempts(), 2u);
}

TEST_F(MigrationTest, ATruncationMeanwhileIsNotUndone) {
  const Fid f = MakeFile("f", Pattern(kMiB));
  bool emptied = false;
  harness.osts.on_call = [&](const std::string&, const proto::ObjectRequest& request) {
    if (request.has_write() && !std::exchange(emptied, true)) {
      auto unwanted = std::make_shared<std::optional<proto::MetadataReply>>();
      proto::MetadataRequest cut;
      *cut.mutable_setattr()->mutable_fid() = ToProto(f);
      cut.mutable_setattr()->set_set_size(true);
      client.Start(cut, unwanted);
    }
    return OkStatus();
  };
  ASSERT_THAT(Ask(MigrateRequest(f, 2)), IsOk());
  EXPECT_EQ(Attr(f).size(), 0u);
  client.StayFor(std::chrono::seconds(20));
  EXPECT_EQ(harness.osts.CountObjects(), 0u);
  EXPECT_EQ(Records(Table::kNewObjects), 0u);
}

TEST_F(MigrationTest, AFileThatIsRemovedMeanwhileLeavesNothing) {
  const Fid f = MakeFile("f", Pattern(kMiB));
  ASSERT_THAT(client.Close(f), IsOk());
  bool removed = false;
  harness.osts.on_call = [&](const std::string&, const proto::ObjectRequest& request) {
    if (request.has_write() && !std::exchange(removed, true)) {
      auto unwanted = std::make_shared<std::optional<proto::MetadataReply>>();
      proto::MetadataRequest unlink;
      *unlink.mutable_unlink()->mutable_parent() = ToProto(kRootFid);
      unlink.mutable_unlink()->set_name("f");
      client.Start(unlink, unwanted);
    }
    return OkStatus();
  };
  EXPECT_THAT(Ask(MigrateRequest(f, 2)), IsOk());
  client.StayFor(std::chrono::seconds(20));
  EXPECT_EQ(harness.osts.CountObjects(), 0u);
  EXPECT_EQ(Records(Table::kNewObjects), 0u);
  EXPECT_EQ(Records(Table::kDestroyAt), 0u);
}

TEST_F(MigrationTest, SaysWhatIsWrong) {
  const Fid f = MakeFile("f", Pattern(kMiB));
  EXPECT_THAT(Ask(MigrateRequest({77, 7, 0}, 1)), Fails(ENOENT));
  EXPECT_THAT(Ask(MigrateRequest(kRootFid, 1)), Fails(EINVAL));
  EXPECT_THAT(Ask(MigrateRequest(f, 1, 1000)), Fails(EINVAL));
  proto::AdminRequest elsewhere = MigrateRequest(f, 1);
  elsewhere.mutable_migrate()->add_osts(9);
  EXPECT_THAT(Ask(elsewhere), Fails(EINVAL));
  proto::AdminRequest copies = MigrateRequest(f, 1);
  copies.mutable_migrate()->mutable_layout()->mutable_components(0)->set_copies(3);
  EXPECT_THAT(Ask(copies), Fails(ENODEV));
  for (OstIndex ost = 0; ost < 4; ++ost) harness.osts.refuses[ost] = ENOSPC;
  EXPECT_THAT(Ask(MigrateRequest(f, 2)), Fails(ENOSPC));
  harness.osts.refuses.clear();
  client.StayFor(std::chrono::seconds(20));
  EXPECT_EQ(Records(Table::kNewObjects), 0u);
  EXPECT_TRUE(ReadObjects(f) == Pattern(kMiB));
}

TEST_F(MigrationTest, GoesWhereItIsTold) {
  const Fid f = MakeFile("f", Pattern(kMiB));
  for (const uint32_t ost : {3, 1}) {
    proto::AdminRequest request = MigrateRequest(f, 1);
    request.mutable_migrate()->add_osts(ost);
    ASSERT_THAT(Ask(request), IsOk());
    EXPECT_EQ(LayoutOf(f).components(0).ost_group(0), ost);
    EXPECT_TRUE(ReadObjects(f) == Pattern(kMiB));
  }
}

TEST_F(MigrationTest, IsGivenUpWhenNobodyAsksAnyMore) {
  const Fid f = MakeFile("f", Pattern(kMiB));
  const proto::Layout before = LayoutOf(f);
  harness.osts.away = {0, 1, 2, 3};
  (void)harness.Await(harness.server->Administer(MigrateRequest(f, 2)));
  client.StayFor(std::chrono::seconds(60));
  harness.osts.away = {};
  client.StayFor(std::chrono::seconds(60));
  EXPECT_EQ(LayoutOf(f).generation(), before.generation());
  EXPECT_EQ(Records(Table::kNewObjects), 0u);
  EXPECT_EQ(harness.osts.CountObjects(), 1u);
}

// The server stops after each commit in its turn.
class MigrationCrashTest : public MigrationTest, public testing::WithParamInterface<int> {};

TEST_P(MigrationCrashTest, LeavesTheFileInOnePlace) {
  const std::string data = Pattern(kMiB);
  const Fid f = MakeFile("f", data);
  harness.StopAfterCommits(GetParam());
  Spawn(harness.context.get_executor(), harness.server->Administer(MigrateRequest(f, 2)),
        [](proto::AdminReply) {});
  harness.RunFor(std::chrono::milliseconds(100));
  harness.RestartStopped();
  client.Reconnect({f});
  client.StayFor(std::chrono::seconds(30));
  EXPECT_EQ(Records(Table::kNewObjects), 0u);
  EXPECT_EQ(Records(Table::kMoved), 0u);
  EXPECT_EQ(Records(Table::kDestroyAt), 0u);
  EXPECT_TRUE(ReadObjects(f) == data);
  EXPECT_EQ(harness.osts.CountObjects(), OstsOf(LayoutOf(f)).size());
}

INSTANTIATE_TEST_SUITE_P(EachCommit, MigrationCrashTest, testing::Range(0, 5));

}  // namespace
}  // namespace nacre::mds
