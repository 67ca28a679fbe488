// OSTs that are drained and removed: what is refused, what moves, and that nobody waits for one that is gone.
#include "server/metadata/ost_removal.h"

#include "tests/server/metadata/growth_fixture.h"

namespace nacre::mds {
namespace {

class OstRemovalTest : public GrowthTest {
 protected:
  // On this OST alone.
  Fid MakeFileOn(OstIndex ost, const std::string& name, const std::string& data = Pattern(kMiB)) {
    const Fid f = MakeFile(name, data);
    proto::AdminRequest request = MigrateRequest(f, 1, 1 << 20);
    request.mutable_migrate()->add_osts(ost);
    EXPECT_THAT(Ask(request), IsOk());
    client.StayFor(std::chrono::seconds(20));  // its first objects are gone then
    return f;
  }
  proto::ClusterStatus Look() { return harness.Await(harness.server->GetStatus()); }
  std::set<OstIndex> Known() {
    std::set<OstIndex> known;
    const proto::ClusterStatus status = Look();
    for (const auto& ost : status.map().osts()) known.insert(ost.info().index());
    return known;
  }
  std::vector<std::string> FilesOn(OstIndex ost) {
    proto::AdminRequest request;
    request.mutable_files_on_ost()->set_ost(ost);
    const proto::AdminReply reply = Ask(request);
    return {reply.paths().begin(), reply.paths().end()};
  }
  void Die(OstIndex ost) {
    harness.osts.away.insert(ost);
    client.StayFor(std::chrono::seconds(15));
  }
};

TEST_F(OstRemovalTest, AnEmptyOneGoes) {
  ASSERT_THAT(Manage(2, proto::ManageOst::REMOVE), IsOk());
  EXPECT_EQ(Known(), (std::set<OstIndex>{0, 1, 3}));
  ASSERT_EQ(Look().map().removed_size(), 1);
  EXPECT_FALSE(Look().map().removed(0).lost());
  client.StayFor(std::chrono::seconds(5));  // its server goes on with its heartbeats
  EXPECT_EQ(Known(), (std::set<OstIndex>{0, 1, 3}));
  EXPECT_THAT(Manage(2, proto::ManageOst::REMOVE), IsOk()) << "it may be repeated";
  EXPECT_THAT(Manage(9, proto::ManageOst::REMOVE), Fails(ENODEV));
  for (int i = 0; i < 8; ++i) {
    const Fid f = MakeFile(absl::StrCat("f", i), Pattern(4096));
    EXPECT_FALSE(OstsOf(LayoutOf(f)).contains(2));
  }
  harness.Restart();
  harness.RegisterOsts();
  EXPECT_EQ(Known(), (std::set<OstIndex>{0, 1, 3}));
}

TEST_F(OstRemovalTest, OneWithFilesIsRefusedAndStaysAsItWas) {
  const Fid f = MakeFileOn(2, "f");
  EXPECT_THAT(FilesOn(2), testing::ElementsAre("/f"));
  const proto::AdminReply refused = Manage(2, proto::ManageOst::REMOVE);
  EXPECT_THAT(refused, Fails(EBUSY));
  EXPECT_THAT(refused.status().message(), testing::HasSubstr("1 file is on OST 2"));
  EXPECT_THAT(Manage(2, proto::ManageOst::REMOVE_LOST), Fails(EBUSY)) << "it is up";
  EXPECT_THAT(Manage(2, proto::ManageOst::UNDRAIN), IsOk());
  std::set<OstIndex> used;
  for (int i = 0; i < 8; ++i) used.merge(OstsOf(LayoutOf(MakeFile(absl::StrCat("n", i), "x"))));
  EXPECT_TRUE(used.contains(2)) << "it takes new files again";
  EXPECT_TRUE(ReadObjects(f) == Pattern(kMiB));
}

// A removal looks at all files, for long where there are many, and relies on it that none comes meanwhile.
TEST_F(OstRemovalTest, NobodyUndrainsItMeanwhile) {
  proto::AdminRequest remove;
  remove.mutable_manage_ost()->set_ost(2);
  remove.mutable_manage_ost()->set_action(proto::ManageOst::REMOVE);
  harness.store.SetCommitPause([this]() -> Task<void> { co_await harness.clock.Sleep(10ms); });
  std::optional<proto::AdminReply> removed;
  Spawn(harness.context.get_executor(), harness.server->Administer(remove),
        [&removed](proto::AdminReply reply) { removed = std::move(reply); });
  harness.RunFor(1ms);
  ASSERT_FALSE(removed.has_value());
  for (const auto action : {proto::ManageOst::UNDRAIN, proto::ManageOst::DRAIN, proto::ManageOst::REMOVE}) {
    const proto::AdminReply refused = Manage(2, action);
    EXPECT_THAT(refused, Fails(EBUSY));
    EXPECT_THAT(refused.status().message(), testing::HasSubstr("just now"));
  }
  EXPECT_THAT(Manage(1, proto::ManageOst::UNDRAIN), IsOk()) << "another one";
  ASSERT_TRUE(harness.RunUntil([&] { return removed.has_value(); }));
  EXPECT_THAT(*removed, IsOk());
}

// A file whose bytes lie in the MDT names OSTs, too, for later.
TEST_F(OstRemovalTest, SmallFilesGetOtherObjectsThanThoseTheyWereToHave) {
  std::vector<Fid> files;
  for (int i = 0; i < 8; ++i) files.push_back(FidOf(client.Create(kRootFid, absl::StrCat("f", i))));
  ASSERT_THAT(Manage(1, proto::ManageOst::REMOVE), IsOk());
  for (const Fid& f : files) {
    proto::MetadataRequest move;
    *move.mutable_move_out()->mutable_fid() = ToProto(f);
    ASSERT_THAT(client.Call(move), IsOk());
    EXPECT_FALSE(OstsOf(LayoutOf(f)).contains(1));
  }
}

TEST_F(OstRemovalTest, DrainingMovesEverythingOff) {
  std::vector<Fid> files;
  for (int i = 0; i < 3; ++i) files.push_back(MakeFileOn(2, absl::StrCat("f", i)));
  ASSERT_THAT(Manage(2, proto::ManageOst::DRAIN), IsOk());
  client.StayFor(std::chrono::seconds(30));
  const proto::ClusterStatus status = Look();
  const proto::OstState& ost = status.map().osts(2);
  ASSERT_TRUE(ost.has_drain());
  EXPECT_TRUE(ost.drain().empty()) << ost.drain().ShortDebugString();
  EXPECT_EQ(ost.drain().moved_files(), 3u);
  for (const Fid& f : files) {
    EXPECT_FALSE(OstsOf(LayoutOf(f)).contains(2));
    EXPECT_TRUE(ReadObjects(f) == Pattern(kMiB));
  }
  EXPECT_TRUE(harness.osts.objects[2].empty());
  ASSERT_THAT(Manage(2, proto::ManageOst::REMOVE), IsOk());
  EXPECT_EQ(Known(), (std::set<OstIndex>{0, 1, 3}));
}

TEST_F(OstRemovalTest, ARestartGoesOnDrainingAndUndrainEndsIt) {
  const Fid f = MakeFileOn(2, "f"), g = MakeFileOn(2, "g");
  for (OstIndex ost : {0, 1, 3}) harness.osts.refuses[ost] = ENOSPC;
  ASSERT_THAT(Manage(2, proto::ManageOst::DRAIN), IsOk());
  client.StayFor(std::chrono::seconds(10));
  EXPECT_EQ(Look().map().osts(2).drain().stuck_files(), 2u);
  EXPECT_THAT(Look().map().osts(2).drain().problem(), testing::HasSubstr("refused"));
  harness.Restart();
  harness.RegisterOsts();
  client.Reconnect({f, g});
  ASSERT_TRUE(Look().map().osts(2).has_drain());
  harness.osts.refuses.clear();
  client.StayFor(std::chrono::seconds(30));
  EXPECT_TRUE(Look().map().osts(2).drain().empty());
  ASSERT_THAT(Manage(2, proto::ManageOst::UNDRAIN), IsOk());
  EXPECT_FALSE(Look().map().osts(2).has_drain());
}

TEST_F(OstRemovalTest, TheOnlyOneIsNotDrained) {
  for (OstIndex ost : {0, 1, 2}) EXPECT_THAT(Manage(ost, proto::ManageOst::DRAIN), IsOk());
  EXPECT_THAT(Manage(3, proto::ManageOst::DRAIN), Fails(EBUSY));
}

TEST_F(OstRemovalTest, ALostOneLeavesNothingBehind) {
  const Fid f = MakeFileOn(2, "f"), gone = MakeFileOn(2, "gone"), kept = MakeFileOn(1, "kept");
  TestClient other(harness);
  Die(2);
  ASSERT_THAT(client.Close(gone), IsOk());
  ASSERT_THAT(client.Unlink(kRootFid, "gone"), IsOk());
  EXPECT_EQ(Records(Table::kDestroyAt), 1u);
  client.StayFor(std::chrono::seconds(60));  // the other one is silent, evicted, and the dead OST not told
  EXPECT_EQ(Records(Table::kFence), 1u);
  const proto::AdminReply reply = Manage(2, proto::ManageOst::REMOVE_LOST);
  ASSERT_THAT(reply, IsOk());
  EXPECT_EQ(reply.files(), 1u);
  EXPECT_THAT(FilesOn(2), testing::ElementsAre("/f"));
  EXPECT_EQ(Records(Table::kDestroyAt), 0u);
  EXPECT_EQ(Records(Table::kFence), 0u);
  ASSERT_EQ(Look().map().removed_size(), 1);
  EXPECT_TRUE(Look().map().removed(0).lost());
  EXPECT_EQ(Look().problems_size(), 0) << Look().problems(0);
  // The rest of the file can be cut, and removed, without anybody being waited for.
  EXPECT_THAT(client.Truncate(f, 4096), IsOk());
  EXPECT_THAT(Ask(MigrateRequest(f, 1)), Fails(EIO));
  EXPECT_THAT(client.Truncate(f, 0), IsOk());
  EXPECT_TRUE(FilesOn(2).empty());
  client.StayFor(std::chrono::seconds(5));
  EXPECT_EQ(Records(Table::kDestroyAt), 0u);
  EXPECT_TRUE(ReadObjects(kept) == Pattern(kMiB));
  // Its disk turns up again: it is no part of the cluster.
  harness.osts.away = {};
  client.StayFor(std::chrono::seconds(5));
  EXPECT_EQ(Known(), (std::set<OstIndex>{0, 1, 3}));
}

// A truncation that waits for the OST, and an eviction that is to tell it, end when it is removed.
TEST_F(OstRemovalTest, WhoWaitsForALostOneGoesOn) {
  const Fid f = MakeFileOn(2, "f");
  harness.osts.away.insert(2);
  proto::MetadataRequest cut;
  *cut.mutable_setattr()->mutable_fid() = ToProto(f);
  cut.mutable_setattr()->set_set_size(true);
  cut.mutable_setattr()->set_size(4096);
  auto reply = std::make_shared<std::optional<proto::MetadataReply>>();
  client.Start(cut, reply);
  client.StayFor(std::chrono::seconds(60));
  ASSERT_FALSE(reply->has_value());
  ASSERT_THAT(Manage(2, proto::ManageOst::REMOVE_LOST), IsOk());
  client.StayFor(std::chrono::seconds(40));
  ASSERT_TRUE(reply->has_value());
  EXPECT_THAT(**reply, IsOk());
}

// The server stops after each commit of a removal in its turn.
class OstRemovalCrashTest : public OstRemovalTest, public testing::WithParamInterface<int> {};

TEST_P(OstRemovalCrashTest, IsInTheClusterOrLeavesNothing) {
  const Fid gone = MakeFileOn(2, "gone");
  Die(2);
  ASSERT_THAT(client.Close(gone), IsOk());
  ASSERT_THAT(client.Unlink(kRootFid, "gone"), IsOk());
  harness.StopAfterCommits(GetParam());
  proto::AdminRequest request;
  request.mutable_manage_ost()->set_ost(2);
  request.mutable_manage_ost()->set_action(proto::ManageOst::REMOVE_LOST);
  Spawn(harness.context.get_executor(), harness.server->Administer(request), [](proto::AdminReply) {});
  harness.RunFor(std::chrono::milliseconds(100));
  harness.RestartStopped();
  client.Reconnect();
  client.StayFor(std::chrono::seconds(5));
  const bool removed = !Known().contains(2);
  EXPECT_EQ(Records(Table::kDestroyAt), removed ? 0u : 1u);
  if (!removed) client.StayFor(std::chrono::seconds(20));
  ASSERT_THAT(Manage(2, proto::ManageOst::REMOVE_LOST), IsOk());
  EXPECT_EQ(Records(Table::kDestroyAt), 0u);
}

INSTANTIATE_TEST_SUITE_P(EachCommit, OstRemovalCrashTest, testing::Range(0, 5));

}  // namespace
}  // namespace nacre::mds
