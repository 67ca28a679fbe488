// Administrators' requests: the paths of a file, the eviction of a client, counts and problems.
#include "server/metadata/administer.h"

#include "server/metadata/keys.h"
#include "tests/server/metadata/harness.h"

namespace nacre::mds {
namespace {

proto::AdminReply PathsOf(Harness& harness, Fid fid) {
  proto::AdminRequest request;
  *request.mutable_paths_of()->mutable_fid() = ToProto(fid);
  return harness.Await(harness.server->Administer(request));
}

proto::AdminReply EvictClient(Harness& harness, const std::string& client) {
  proto::AdminRequest request;
  request.mutable_evict()->set_client(client);
  return harness.Await(harness.server->Administer(request));
}

TEST(Administer, ShowsEveryPathOfAFile) {
  Harness harness;
  TestClient client(harness);
  Fid a = FidOf(client.Mkdir(kRootFid, "a")), b = FidOf(client.Mkdir(a, "b"));
  Fid file = FidOf(client.Create(b, "file"));
  EXPECT_THAT(PathsOf(harness, kRootFid).paths(), testing::ElementsAre("/"));
  EXPECT_THAT(PathsOf(harness, b).paths(), testing::ElementsAre("/a/b"));
  EXPECT_THAT(PathsOf(harness, file).paths(), testing::ElementsAre("/a/b/file"));
  EXPECT_THAT(client.Link(file, kRootFid, "second"), IsOk());
  EXPECT_THAT(PathsOf(harness, file).paths(), testing::UnorderedElementsAre("/a/b/file", "/second"));
  EXPECT_THAT(client.Rename(kRootFid, "a", kRootFid, "c"), IsOk());
  EXPECT_THAT(PathsOf(harness, file).paths(), testing::UnorderedElementsAre("/c/b/file", "/second"));
  EXPECT_THAT(client.Unlink(b, "file"), IsOk());
  EXPECT_THAT(PathsOf(harness, file).paths(), testing::ElementsAre("/second"));
  EXPECT_THAT(PathsOf(harness, Fid{77, 7, 0}), Fails(ENOENT));
  EXPECT_THAT(client.Unlink(kRootFid, "second", /*keep_open=*/true), IsOk());
  EXPECT_THAT(PathsOf(harness, file), Fails(ENOENT));
  EXPECT_THAT(harness.Await(harness.server->Administer({})), Fails(EPROTO));
}

TEST(Administer, EvictsAClientByNumberOrName) {
  Harness harness;
  TestClient first(harness), second(harness);
  EXPECT_THAT(EvictClient(harness, "nobody"), Fails(ENOENT));
  EXPECT_THAT(first.Getattr(kRootFid), IsOk());
  EXPECT_THAT(EvictClient(harness, std::to_string(first.session)), IsOk());
  EXPECT_TRUE(first.peer->closed);
  EXPECT_THAT(first.Getattr(kRootFid), Fails(ESTALE));
  EXPECT_THAT(second.Getattr(kRootFid), IsOk());
  for (OstIndex ost = 0; ost < 4; ++ost) EXPECT_TRUE(harness.osts.fenced[ost].count(first.session)) << ost;
}

TEST(Administer, CountsWhatClientsAskForAndWhatTheyAreAskedFor) {
  Harness harness;
  TestClient first(harness), second(harness);
  Fid file = FidOf(first.Create(kRootFid, "file"));
  EXPECT_THAT(second.Getattr(file), IsOk());
  proto::ClusterStatus before = harness.Await(harness.server->GetStatus());
  EXPECT_THAT(second.Getattr(file), IsOk());
  EXPECT_THAT(second.Getattr(Fid{77, 7, 0}), Fails(ENOENT));
  EXPECT_THAT(first.Mkdir(kRootFid, "directory"), IsOk());
  proto::ClusterStatus after = harness.Await(harness.server->GetStatus());
  EXPECT_EQ(after.requests().at("getattr") - before.requests().at("getattr"), 2);
  EXPECT_EQ(after.requests().at("connect"), 2);
  EXPECT_EQ(after.requests().at("mknod"), 1);
  EXPECT_FALSE(after.requests().contains("link"));
}

TEST(Administer, DamageIsAProblemOnce) {
  Harness harness;
  TestClient client(harness);
  Fid file = FidOf(client.Create(kRootFid, "file"));
  EXPECT_THAT(client.Close(file, 1, true), IsOk());
  EXPECT_EQ(harness.Await(harness.server->GetStatus()).problems_size(), 0);
  harness.Restart();  // the inode is in no cache any more
  KvBatch batch;
  batch.Put(FidKey(Table::kInode, file), "nonsense");
  ASSERT_TRUE(harness.Await(harness.store.Commit(std::move(batch))).ok());
  harness.RegisterOsts();
  EXPECT_THAT(client.Connect(), IsOk());
  for (int i = 0; i < 3; ++i) EXPECT_THAT(client.Getattr(file), Fails(EIO));
  const proto::ClusterStatus status = harness.Await(harness.server->GetStatus());
  ASSERT_EQ(status.problems_size(), 1);
  EXPECT_THAT(status.problems(0), testing::HasSubstr(file.ToString()));
}

TEST(Administer, AnOstsProblemNamesTheFilesPath) {
  Harness harness;
  TestClient client(harness);
  Fid file = FidOf(client.Create(kRootFid, "file"));
  proto::HeartbeatRequest beat;
  const proto::ClusterMap map = harness.Await(harness.server->GetStatus()).map();
  beat.set_address(map.osts(1).address());
  beat.set_instance(map.osts(1).instance());
  *beat.add_osts() = map.osts(1).info();
  beat.mutable_osts(0)->add_problems("bad block");
  *beat.mutable_osts(0)->add_problem_files() = ToProto(file);
  ASSERT_EQ(harness.Await(harness.server->Heartbeat(beat)).status().error(), 0u);
  const proto::ClusterStatus status = harness.Await(harness.server->GetStatus());
  ASSERT_EQ(status.problems_size(), 1);
  EXPECT_EQ(status.problems(0), "OST 1: bad block (/file)");
}

}  // namespace
}  // namespace nacre::mds
