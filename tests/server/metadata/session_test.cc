// Sessions, their leases, recovery after a restart, evictions.
#include "tests/server/metadata/lease_clients.h"

namespace nacre::mds {
namespace {

using namespace std::chrono_literals;

// Starts to connect; the reply comes when the MDS lets it in.
struct ConnectingClient {
  std::shared_ptr<FakePeer> peer = std::make_shared<FakePeer>("late");
  std::shared_ptr<std::optional<proto::MetadataReply>> reply =
      std::make_shared<std::optional<proto::MetadataReply>>();

  explicit ConnectingClient(Harness& harness, uint64_t nonce = 4711, const std::string& name = "",
                            bool replaces = false) {
    proto::MetadataRequest request;
    request.mutable_connect()->set_name(name);
    request.mutable_connect()->set_version(3);
    request.mutable_connect()->set_nonce(nonce);
    request.mutable_connect()->set_replaces(replaces);
    Spawn(harness.context.get_executor(), harness.server->Handle(peer, request),
          [reply = reply](proto::MetadataReply value) { *reply = std::move(value); });
  }
  bool done() const { return reply->has_value(); }
};

proto::MetadataRequest ReclaimRequest(bool last = true) {
  proto::MetadataRequest request;
  request.mutable_reclaim()->set_last(last);
  return request;
}

void AddOpen(proto::MetadataRequest* request, Fid fid, uint32_t count, bool write) {
  proto::OpenFile* open = request->mutable_reclaim()->add_opens();
  *open->mutable_fid() = ToProto(fid);
  open->set_count(count);
  open->set_write(write);
}

TEST(Session, RefusesStrangers) {
  Harness harness;
  TestClient client(harness);
  SessionId mine = client.session;
  client.nonce ^= 1;
  EXPECT_THAT(client.Connect(), Fails(EPERM));
  client.session = 999;
  EXPECT_THAT(client.Connect(), Fails(ESTALE));
  EXPECT_THAT(client.Getattr(kRootFid), Fails(ESTALE));
  TestClient other(harness);
  other.session = mine;  // over another stream
  EXPECT_THAT(other.Getattr(kRootFid), Fails(ESTALE));
}

TEST(Session, ConnectChecksVersionAndCluster) {
  Harness harness;
  proto::MetadataRequest request;
  auto peer = std::make_shared<FakePeer>("p");
  for (uint32_t version : {0u, 2u, 6u}) {
    request.mutable_connect()->set_version(version);
    auto reply = harness.Await(harness.server->Handle(peer, request));
    EXPECT_THAT(reply, Fails(EPROTO));
    const std::string both =
        absl::StrFormat("speaks version %d of the protocol, this server versions 3 to 5", version);
    EXPECT_THAT(reply.status().message(), testing::HasSubstr(both));
  }
  // A client that speaks older ones, too, is answered in the one that this server speaks.
  request.mutable_connect()->set_version(7);
  request.mutable_connect()->set_oldest_version(6);
  EXPECT_THAT(harness.Await(harness.server->Handle(peer, request)), Fails(EPROTO));
  request.mutable_connect()->set_oldest_version(3);
  EXPECT_EQ(harness.Await(harness.server->Handle(peer, request)).connect().version(), 5u);
  // One of before is answered in its own.
  request.mutable_connect()->set_version(3);
  EXPECT_EQ(harness.Await(harness.server->Handle(peer, request)).connect().version(), 3u);
  request.mutable_connect()->set_cluster_uuid("another");
  EXPECT_THAT(harness.Await(harness.server->Handle(peer, request)), Fails(EINVAL));
}

TEST(Session, AReadOnlyOneChangesNothing) {
  Harness harness;
  proto::MetadataRequest request;
  request.mutable_connect()->set_version(3);
  request.mutable_connect()->set_read_only(true);
  TestClient client(harness);
  client.session = harness.Await(harness.server->Handle(client.peer, request)).connect().session();
  EXPECT_THAT(client.Create(kRootFid, "a"), Fails(EROFS));
  EXPECT_THAT(client.Getattr(kRootFid), IsOk());
}

TEST(Session, ARepeatedConnectIsTheSameSession) {
  Harness harness;
  ConnectingClient first(harness), second(harness);
  ASSERT_TRUE(harness.RunUntil([&] { return first.done() && second.done(); }));
  EXPECT_EQ((*first.reply)->connect().session(), (*second.reply)->connect().session());
}

// Of two attempts to connect, the one that the client has given up may be admitted last.
TEST(Session, AStreamThatItHasLeftIsClosed) {
  Harness harness;
  TestClient client(harness);
  std::shared_ptr<FakePeer> left = client.peer;
  ASSERT_THAT(client.Connect(), IsOk());
  std::shared_ptr<FakePeer> now = std::exchange(client.peer, left);
  EXPECT_THAT(client.Getattr(kRootFid), Fails(ESTALE));
  EXPECT_TRUE(left->closed);
  client.peer = now;
  EXPECT_THAT(client.Getattr(kRootFid), IsOk());
  EXPECT_FALSE(now->closed);
}

TEST(Session, SequencesBelowTheLowWaterAreRefused) {
  Harness harness;
  TestClient client(harness);
  for (int i = 0; i < 3; ++i) client.Mkdir(kRootFid, absl::StrCat("d", i));
  proto::MetadataRequest request;
  *request.mutable_mknod()->mutable_parent() = ToProto(kRootFid);
  request.mutable_mknod()->set_name("late");
  request.mutable_mknod()->set_mode(S_IFDIR | 0755);
  request.set_session(client.session);
  request.set_sequence(1);
  request.set_low_water(1);
  EXPECT_THAT(harness.Await(harness.server->Handle(client.peer, request)), Fails(ESTALE));
  request.set_sequence(0);
  EXPECT_THAT(harness.Await(harness.server->Handle(client.peer, request)), Fails(EPROTO));
}

TEST(Session, ARepeatWaitsForTheFirst) {
  Harness harness;
  TestClient client(harness);
  proto::MetadataRequest request;
  *request.mutable_mknod()->mutable_parent() = ToProto(kRootFid);
  request.mutable_mknod()->set_name("once");
  request.mutable_mknod()->set_mode(S_IFDIR | 0755);
  request = client.Prepare(request);
  int answers = 0;
  std::string first;
  for (int i = 0; i < 3; ++i) {
    Spawn(harness.context.get_executor(), harness.server->Handle(client.peer, request),
          [&](proto::MetadataReply reply) {
            ++answers;
            if (first.empty()) first = reply.SerializeAsString();
            EXPECT_EQ(first, reply.SerializeAsString());
          });
  }
  ASSERT_TRUE(harness.RunUntil([&] { return answers == 3; }));
  EXPECT_EQ(client.Getattr(kRootFid).attr().attr().nlink(), 3u);
}

TEST(Session, AFailedCommitIsNotRecordedAsDone) {
  Harness harness;
  TestClient client(harness);
  proto::MetadataRequest request;
  *request.mutable_mknod()->mutable_parent() = ToProto(kRootFid);
  request.mutable_mknod()->set_name("d");
  request.mutable_mknod()->set_mode(S_IFDIR | 0755);
  request = client.Prepare(request);
  harness.store.SetCommitHook([](const KvBatch&) { return ErrnoError(ENOSPC, "full"); });
  EXPECT_THAT(harness.Await(harness.server->Handle(client.peer, request)), Fails(ENOSPC));
  harness.store.SetCommitHook({});
  EXPECT_THAT(harness.Await(harness.server->Handle(client.peer, request)), Fails(ENOSPC));
  EXPECT_THAT(client.Lookup(kRootFid, "d"), Fails(ENOENT));
  EXPECT_EQ(client.Getattr(kRootFid).attr().attr().nlink(), 2u);
}

TEST(Session, ARepeatedCreateOrKeptUnlinkNotesTheHandleAfterARestart) {
  Harness harness;
  TestClient client(harness), other(harness);
  Fid kept = FidOf(other.Mknod(kRootFid, "kept", S_IFREG | 0644));
  proto::MetadataRequest create, unlink;
  *create.mutable_create()->mutable_parent() = ToProto(kRootFid);
  create.mutable_create()->set_name("made");
  create.mutable_create()->set_exclusive(true);
  create = client.Prepare(create);
  *unlink.mutable_unlink()->mutable_parent() = ToProto(kRootFid);
  unlink.mutable_unlink()->set_name("kept");
  unlink.mutable_unlink()->set_keep_open(true);
  unlink = client.Prepare(unlink);
  Fid made = FidOf(harness.Await(harness.server->Handle(client.peer, create)));
  ASSERT_THAT(harness.Await(harness.server->Handle(client.peer, unlink)), IsOk());
  harness.Restart();
  for (TestClient* back : {&client, &other}) {
    ASSERT_THAT(back->Connect(), IsOk());
    ASSERT_THAT(back->Call(ReclaimRequest()), IsOk());
  }
  ASSERT_THAT(harness.Await(harness.server->Handle(client.peer, create)), IsOk());
  ASSERT_THAT(harness.Await(harness.server->Handle(client.peer, unlink)), IsOk());
  EXPECT_THAT(other.Unlink(kRootFid, "made"), IsOk());
  harness.RunFor(std::chrono::seconds(10));
  EXPECT_THAT(client.Getattr(made), IsOk());
  EXPECT_THAT(client.Getattr(kept), IsOk());
  EXPECT_THAT(client.Close(made), IsOk());
  EXPECT_THAT(client.Close(kept, 0), IsOk());
  EXPECT_THAT(client.Getattr(made), Fails(ENOENT));
  EXPECT_THAT(client.Getattr(kept), Fails(ENOENT));
}

// Two clients, of which the first has WRITE of the root.
class LeaseTest : public testing::Test {
 protected:
  explicit LeaseTest(MetadataOptions options = WithLeases())
      : harness_(2, options), first_(harness_), second_(harness_) {
    proto::MetadataRequest make;
    *make.mutable_mknod()->mutable_parent() = ToProto(kRootFid);
    make.mutable_mknod()->set_name("d");
    make.mutable_mknod()->set_mode(S_IFDIR | 0755);
    make.set_want_lease(true);
    const proto::MetadataReply made = first_.Call(std::move(make));
    EXPECT_EQ(made.directory_leases_size(), 2);
    lease_ = made.directory_leases(0);
    EXPECT_EQ(FromProto(lease_.resource()), kRootFid);
    EXPECT_EQ(lease_.mode(), proto::LEASE_WRITE);
  }

  // The second looks at it.
  void Look() {
    proto::MetadataRequest look;
    *look.mutable_getattr()->mutable_fid() = ToProto(kRootFid);
    second_.Start(second_.Prepare(std::move(look)), looked_);
  }
  bool looked() const { return looked_->has_value(); }

  Harness harness_;
  TestClient first_, second_;
  proto::Lease lease_;
  std::shared_ptr<std::optional<proto::MetadataReply>> looked_ =
      std::make_shared<std::optional<proto::MetadataReply>>();
};

// Cut off it may answer out of its caches, and those of its kernel, until its lease has run out by its clock.
TEST_F(LeaseTest, WhoLostItsStreamKeepsItUntilItHasRunOutByTheClockAndNoLonger) {
  harness_.server->Disconnected(first_.peer);
  Look();
  harness_.RunFor(harness_.options.lease - 1s);
  EXPECT_FALSE(looked());
  EXPECT_TRUE(harness_.RunUntil([&] { return looked(); }, harness_.options.lease / 10 + 3s));
}

TEST_F(LeaseTest, WhoLooksWaitsUntilItIsGivenBack) {
  Look();
  harness_.RunFor(3s);
  EXPECT_FALSE(looked());
  std::erase_if(first_.peer->pushes, [](const proto::Push& push) { return !push.has_revoke(); });
  ASSERT_EQ(first_.peer->pushes.size(), 1u);
  EXPECT_EQ(first_.peer->pushes[0].revoke().id(), lease_.id());
  Release(first_, lease_.id());
  EXPECT_TRUE(harness_.RunUntil([&] { return looked(); }, 1s));
}

class SlowLeaseTest : public LeaseTest {
 protected:
  SlowLeaseTest() : LeaseTest(MakeOptions()) {}
  static MetadataOptions MakeOptions() {
    MetadataOptions options = WithLeases();
    options.revoke_timeout = std::chrono::seconds(10);
    options.lease = options.session_timeout;  // before it is given up for its silence
    return options;
  }
};

TEST_F(SlowLeaseTest, WhoDoesNotGiveItBackIsFencedAndEvicted) {
  const Duration begin = harness_.clock.Now();
  Look();
  for (int i = 0; i < 120 && !looked(); ++i) second_.StayFor(1s);
  ASSERT_TRUE(looked());
  EXPECT_GE(harness_.clock.Now() - begin, harness_.options.revoke_timeout);
  EXPECT_TRUE(first_.peer->closed);
  for (uint32_t ost : {0u, 1u}) EXPECT_TRUE(harness_.osts.fenced[ost].contains(first_.session));
  EXPECT_THAT(first_.Getattr(kRootFid), Fails(ESTALE));
  EXPECT_THAT(first_.Connect(), Fails(ESTALE));
}

TEST(Eviction, AClientThatIsStartedAgainTakesItsPlaceAtOnce) {
  Harness harness(2, WithLeases());
  const std::string place = "host:/mnt@boot";
  ConnectingClient first(harness, 1, place);
  ASSERT_TRUE(harness.RunUntil([&] { return first.done(); }));
  harness.server->Disconnected(first.peer);  // killed
  const Duration begin = harness.clock.Now();
  ConnectingClient second(harness, 2, place, /*replaces=*/true);
  ASSERT_TRUE(harness.RunUntil([&] { return second.done(); }));
  EXPECT_LT(harness.clock.Now() - begin, std::chrono::seconds(1));
  for (uint32_t ost : {0u, 1u})
    EXPECT_TRUE(harness.osts.fenced[ost].contains((*first.reply)->connect().session()));

  harness.Crash();  // and the MDS with it
  harness.Start();
  ConnectingClient third(harness, 3, place, /*replaces=*/true);
  ASSERT_TRUE(harness.RunUntil([&] { return third.done(); }));
  EXPECT_LT(harness.clock.Now() - begin, std::chrono::seconds(5));
}

TEST(Eviction, ANameOfALivingClientIsNotTakenOver) {
  Harness harness(2);
  ConnectingClient first(harness, 1, "same");
  ASSERT_TRUE(harness.RunUntil([&] { return first.done(); }));
  ConnectingClient second(harness, 2, "same");
  ASSERT_TRUE(harness.RunUntil([&] { return second.done(); }));
  EXPECT_FALSE(first.peer->closed);
  EXPECT_TRUE(harness.osts.fenced[0].empty());
}

// Two clients with one configuration: the stream of the first blinks while the second comes.
TEST(Eviction, NorWhenItsStreamIsDownForAMoment) {
  Harness harness(2);
  ConnectingClient first(harness, 1, "same");
  ASSERT_TRUE(harness.RunUntil([&] { return first.done(); }));
  const SessionId session = (*first.reply)->connect().session();
  harness.server->Disconnected(first.peer);
  ConnectingClient second(harness, 2, "same");
  ASSERT_TRUE(harness.RunUntil([&] { return second.done(); }));
  EXPECT_TRUE(harness.osts.fenced[0].empty());
  proto::MetadataRequest back;
  back.mutable_connect()->set_version(3);
  back.mutable_connect()->set_nonce(1);
  back.mutable_connect()->set_session(session);
  EXPECT_THAT(harness.Await(harness.server->Handle(first.peer, back)), IsOk());
}

// kill -9 of a client: its stream may seem to be up when the next one comes, and its lease is not waited for.
TEST(Session, ANewOneThatReplacesAnOldOneIsNotKeptWaiting) {
  Harness harness(2, WithLeases());
  ConnectingClient first(harness, 1, "same");
  ASSERT_TRUE(harness.RunUntil([&] { return first.done(); }));
  ConnectingClient second(harness, 2, "same", /*replaces=*/true);
  auto before = harness.clock.Now();
  ASSERT_TRUE(harness.RunUntil([&] { return second.done(); }));
  EXPECT_LT(harness.clock.Now() - before, std::chrono::seconds(2));
  EXPECT_TRUE(first.peer->closed);
  EXPECT_FALSE(harness.osts.fenced[0].empty());
}

TEST(Eviction, ASilentSessionGoesAndItsOrphansWithIt) {
  Harness harness;
  TestClient client(harness);
  Fid f = FidOf(client.Create(kRootFid, "f"));
  client.Unlink(kRootFid, "f");
  harness.RunFor(harness.options.session_timeout + std::chrono::seconds(5));
  EXPECT_TRUE(client.peer->closed);
  TestClient other(harness);
  EXPECT_THAT(other.Getattr(f), Fails(ENOENT));
}

TEST(Eviction, GoesOnWhenTheStoreTakesWritesAgain) {
  Harness harness(2);
  TestClient client(harness);
  ASSERT_THAT(client.Create(kRootFid, "f"), IsOk());
  harness.store.SetCommitHook([](const KvBatch&) { return ErrnoError(ENOSPC, "full"); });
  harness.RunFor(harness.options.session_timeout + std::chrono::seconds(10));
  EXPECT_EQ(harness.Await(harness.server->GetStatus()).sessions_size(), 1);
  harness.store.SetCommitHook({});
  harness.RunFor(std::chrono::seconds(5));
  EXPECT_EQ(harness.Await(harness.server->GetStatus()).sessions_size(), 0);
}

TEST(Eviction, KeepAliveKeepsIt) {
  Harness harness;
  TestClient client(harness);
  proto::MetadataRequest alive;
  alive.mutable_keep_alive()->add_paths("oss tcp");
  alive.mutable_keep_alive()->add_path_states()->set_reads(7);
  for (int i = 0; i < 10; ++i) {
    harness.RunFor(std::chrono::seconds(10));
    ASSERT_THAT(client.Call(alive), IsOk());
  }
  auto status = harness.Await(harness.server->GetStatus());
  ASSERT_EQ(status.sessions_size(), 1);
  EXPECT_EQ(status.sessions(0).paths(0), "oss tcp");
  ASSERT_EQ(status.sessions(0).path_states_size(), 1);
  EXPECT_EQ(status.sessions(0).path_states(0).reads(), 7u);
}

TEST(Recovery, ClientsComeBackWithWhatTheyHeld) {
  Harness harness(2);
  TestClient client(harness);
  Fid f = FidOf(client.Create(kRootFid, "f"));
  ASSERT_THAT(client.Unlink(kRootFid, "f"), IsOk());
  harness.Restart();
  EXPECT_THAT(client.Getattr(kRootFid), Fails(ESTALE));
  auto back = client.Connect();
  ASSERT_THAT(back, IsOk());
  auto reclaim = ReclaimRequest();
  AddOpen(&reclaim, f, 1, true);
  AddOpen(&reclaim, Fid{77, 7, 0}, 1, false);
  auto reply = client.Call(reclaim);
  ASSERT_THAT(reply, IsOk());
  EXPECT_EQ(reply.reclaim().lost_size(), 1);
  harness.RunFor(std::chrono::seconds(5));
  EXPECT_THAT(client.Getattr(f), IsOk());
  EXPECT_THAT(client.Close(f), IsOk());
  EXPECT_THAT(client.Getattr(f), Fails(ENOENT));
}

TEST(Recovery, NewSessionsWaitUntilTheOldOnesAreBackOrEvicted) {
  Harness harness(2);
  TestClient a(harness), b(harness);
  Fid f = FidOf(a.Create(kRootFid, "f"));
  ASSERT_THAT(a.Unlink(kRootFid, "f"), IsOk());
  harness.Restart();
  harness.RegisterOsts();
  ASSERT_THAT(b.Connect(), IsOk());
  ASSERT_THAT(b.Call(ReclaimRequest()), IsOk());
  ConnectingClient late(harness);
  harness.RunFor(std::chrono::seconds(20));
  EXPECT_FALSE(late.done());
  EXPECT_THAT(b.Getattr(f), IsOk()) << "an orphan of a session that may still come back";
  proto::MetadataRequest alive;
  alive.mutable_keep_alive();
  EXPECT_THAT(b.Call(alive), IsOk());
  ASSERT_TRUE(harness.RunUntil([&] { return late.done(); }, std::chrono::seconds(15)));
  harness.RunFor(std::chrono::seconds(6));
  EXPECT_THAT(b.Getattr(f), Fails(ENOENT));
  EXPECT_TRUE(harness.osts.fenced[0].contains(a.session));
}

TEST_F(LeaseTest, IsReclaimedAfterARestart) {
  harness_.Restart();
  for (TestClient* client : {&first_, &second_}) {
    ASSERT_THAT(client->Connect(), IsOk());
    auto reclaim = ReclaimRequest();
    if (client == &first_) *reclaim.mutable_reclaim()->add_leases() = lease_;
    ASSERT_THAT(client->Call(reclaim), IsOk());
  }
  Look();
  harness_.RunFor(3s);
  EXPECT_FALSE(looked());
  std::erase_if(first_.peer->pushes, [](const proto::Push& push) { return !push.has_revoke(); });
  ASSERT_EQ(first_.peer->pushes.size(), 1u);
  EXPECT_EQ(first_.peer->pushes[0].revoke().id(), lease_.id());
  Release(first_, lease_.id());
  EXPECT_TRUE(harness_.RunUntil([&] { return looked(); }, 1s));
}

// The revocation was lost with the stream.
TEST_F(LeaseTest, IsAskedForOnceMoreByWhoNamesIt) {
  Look();
  harness_.RunFor(1s);
  ASSERT_THAT(first_.Connect(), IsOk());
  first_.peer->pushes.clear();
  auto reclaim = ReclaimRequest();
  *reclaim.mutable_reclaim()->add_leases() = lease_;
  ASSERT_THAT(first_.Call(reclaim), IsOk());
  ASSERT_EQ(first_.peer->pushes.size(), 1u);
  EXPECT_EQ(first_.peer->pushes[0].revoke().id(), lease_.id());
}

}  // namespace
}  // namespace nacre::mds
