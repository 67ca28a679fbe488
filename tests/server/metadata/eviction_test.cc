// Evictions while OSTs are dead, cut off or slow: bounded in time, and nothing of the session comes
// afterwards.
#include "server/metadata/eviction.h"

#include "tests/server/metadata/lease_clients.h"

namespace nacre::mds {
namespace {

using namespace std::chrono_literals;

class EvictionTest : public testing::Test {
 protected:
  EvictionTest() : harness_(4), client_(harness_) {}

  // A file of 64 KiB on this OST (stripes are chosen by free space, so several are tried), open for writing.
  Fid FileOn(OstIndex ost) {
    for (int i = 0; i < 64; ++i) {
      Fid fid = FidOf(client_.Create(kRootFid, absl::StrCat("f", ost, ".", i)));
      proto::MetadataRequest out;
      *out.mutable_move_out()->mutable_fid() = ToProto(fid);
      layout_ = client_.Call(out).moved_out().layout();
      if (layout_.components(0).ost_group(0) == ost) return fid;
    }
    ADD_FAILURE() << "no file on OST " << ost;
    return {};
  }

  // The client has written so far into the file that FileOn made last, and the MDS has not heard of it.
  void WriteUntold(Fid fid, OstIndex ost, size_t bytes) {
    const ObjectId id{layout_.object_sequence(), 0};
    harness_.osts.objects[ost][id] = {std::string(bytes, 'x'), fid};
    harness_.osts.grown[ost].insert({client_.session, id});
  }

  bool Gone(Duration within) {
    return harness_.RunUntil(
        [&] { return harness_.Await(harness_.server->GetStatus()).sessions_size() == 0; }, within);
  }
  uint64_t SizeOf(Fid fid) { return TestClient(harness_).Getattr(fid).attr().attr().size(); }

  Harness harness_;
  TestClient client_;
  proto::Layout layout_;
};

TEST_F(EvictionTest, FilesGetTheSizeOfTheirObjects) {
  Fid f = FileOn(1);
  WriteUntold(f, 1, 50000);
  const WallTime written = FromProto(client_.Getattr(f).attr().attr().mtime());
  ASSERT_TRUE(Gone(harness_.options.session_timeout + 5s));
  EXPECT_EQ(SizeOf(f), 50000u);
  EXPECT_EQ(FromProto(TestClient(harness_).Getattr(f).attr().attr().mtime()), written)
      << "nobody knows a newer one";
  EXPECT_TRUE(harness_.osts.grown[1].empty()) << "settled";
}

TEST_F(EvictionTest, NobodyIsSilentWhileTheMdsStandsStill) {
  harness_.clock.Step(10 * harness_.options.session_timeout);
  EXPECT_FALSE(Gone(5s)) << "what it said lies unread";
  EXPECT_TRUE(Gone(harness_.options.session_timeout + 5s));
}

// May serve when it is told so.
class SwitchedAuthority : public Authority {
 public:
  bool MayServe() const override { return serves; }
  Task<Status> AwaitAuthority() override { co_return absl::UnavailableError("never"); }
  void WhenKept(absl::AnyInvocable<void(bool)> done) override { done(true); }

  bool serves = true;
};

TEST_F(EvictionTest, NobodyIsSilentWhileTheMdsIsNotSureToBeThePrimary) {
  SwitchedAuthority authority;
  harness_.Crash();
  harness_.authority = &authority;
  harness_.Start();
  harness_.RegisterOsts();
  authority.serves = false;
  EXPECT_FALSE(Gone(10 * (harness_.options.recovery_window + harness_.options.session_timeout)));
  authority.serves = true;
  EXPECT_TRUE(Gone(harness_.options.recovery_window + 15s));
}

TEST_F(EvictionTest, AfterARestartOfTheMdsToo) {
  Fid f = FileOn(1);
  WriteUntold(f, 1, 50000);
  harness_.Restart();
  harness_.RegisterOsts();
  harness_.RunFor(harness_.options.recovery_window + 15s);
  EXPECT_EQ(SizeOf(f), 50000u);
}

TEST_F(EvictionTest, WhatItTruncatedMeanwhileIsLeftAlone) {
  Fid f = FileOn(1);
  WriteUntold(f, 1, 50000);
  TestClient other(harness_);
  ASSERT_THAT(other.Truncate(f, 100), IsOk());
  ASSERT_THAT(other.Truncate(f, 0), IsOk());  // other objects from here on
  proto::MetadataRequest bye;
  bye.mutable_disconnect();
  other.Call(bye);
  ASSERT_TRUE(Gone(harness_.options.session_timeout + 5s));
  EXPECT_EQ(SizeOf(f), 0u);
}

TEST_F(EvictionTest, ADeadOstDoesNotKeepTheSession) {
  Fid f = FileOn(2);
  WriteUntold(f, 2, 50000);
  harness_.osts.away = {2};
  ASSERT_TRUE(Gone(harness_.options.session_timeout + 5s)) << "it has been dead for as long as the client";
  EXPECT_TRUE(harness_.osts.fenced[1].contains(client_.session));
  EXPECT_EQ(SizeOf(f), 0u) << "nobody waits for the OST";
  harness_.osts.away = {};
  harness_.RunFor(3s);
  EXPECT_TRUE(harness_.osts.fenced[2].contains(client_.session));
  EXPECT_EQ(SizeOf(f), 50000u);
}

// The OST was away when its writer went, and comes back when another client has a lease of the file's
// directory.
class EvictionWithLeases : public testing::Test {
 protected:
  EvictionWithLeases() {
    TestClient writer(harness_);
    file_ = FidOf(writer.Create(kRootFid, "f"));
    harness_.osts.away = {WriteUntold(harness_, writer, file_, 50000)};
    EXPECT_TRUE(harness_.RunUntil(
        [&] { return harness_.Await(harness_.server->GetStatus()).sessions_size() == 0; }, 60s));
    other_.emplace(harness_);
    other_->peer->on_push = [this](const proto::Push& push) {
      if (push.has_revoke()) asked_ = push.revoke().id();
    };
    proto::MetadataRequest look;
    *look.mutable_lookup()->mutable_parent() = ToProto(kRootFid);
    look.mutable_lookup()->set_name("f");
    look.mutable_lookup()->set_want_lease(true);
    const proto::MetadataReply found = other_->Call(std::move(look));
    EXPECT_EQ(found.directory_leases_size(), 1);
    EXPECT_EQ(found.entry().attr().size(), 0u);
    harness_.osts.away = {};
    other_->StayFor(8s);
  }
  uint64_t Size() { return other_->Getattr(file_).attr().attr().size(); }

  Harness harness_{4, MetadataOptions{}};
  std::optional<TestClient> other_;
  Fid file_;
  uint64_t asked_ = 0;  // the lease that it is to give back
};

TEST_F(EvictionWithLeases, WhoHoldsALeaseGivesItUpBeforeASizeChanges) {
  ASSERT_NE(asked_, 0u);
  EXPECT_EQ(Size(), 0u);
  proto::MetadataRequest release;
  release.mutable_release_lease()->set_id(asked_);
  ASSERT_THAT(other_->Call(release), IsOk());
  other_->StayFor(8s);
  EXPECT_EQ(Size(), 50000u);
}

// The size that the OST has told is from before the truncation, and must not grow the file again.
TEST_F(EvictionWithLeases, WhatItTruncatesBeforeItGivesUpStaysTruncated) {
  ASSERT_NE(asked_, 0u);
  ASSERT_THAT(other_->UpdateSize(file_, 50000, 104), IsOk());
  ASSERT_THAT(other_->Truncate(file_, 100), IsOk());
  proto::MetadataRequest release;
  release.mutable_release_lease()->set_id(asked_);
  ASSERT_THAT(other_->Call(release), IsOk());
  other_->StayFor(8s);
  EXPECT_EQ(Size(), 100u);
}

// Recovery ends with the eviction of who has not come back, and changes wait for that, so the eviction must
// not wait for a client: it may be about to change something before it gives its lease up.
TEST(EvictionInRecovery, WaitsForNobodysLease) {
  Harness harness(4, WithLeases());
  TestClient lost(harness);
  TestClient back(harness);
  const Fid file = FidOf(lost.Create(kRootFid, "f"));
  WriteUntold(harness, lost, file, 50000);
  harness.RunFor(10s);
  proto::MetadataRequest look;
  *look.mutable_lookup()->mutable_parent() = ToProto(kRootFid);
  look.mutable_lookup()->set_name("f");
  look.mutable_lookup()->set_want_lease(true);
  const proto::MetadataReply found = back.Call(std::move(look));
  ASSERT_EQ(found.directory_leases_size(), 1);

  harness.Restart();
  harness.RegisterOsts();
  back.Connect();
  proto::MetadataRequest reclaim;
  *reclaim.mutable_reclaim()->add_leases() = found.directory_leases(0);
  reclaim.mutable_reclaim()->set_last(true);
  ASSERT_THAT(back.Call(std::move(reclaim)), IsOk());
  proto::MetadataRequest make;
  *make.mutable_mknod()->mutable_parent() = ToProto(kRootFid);
  make.mutable_mknod()->set_name("g");
  make.mutable_mknod()->set_mode(S_IFREG | 0644);
  auto answer = std::make_shared<std::optional<proto::MetadataReply>>();
  back.Start(back.Prepare(std::move(make)), answer);
  for (int i = 0; i < 30 && !answer->has_value(); ++i) back.StayFor(1s);
  ASSERT_TRUE(answer->has_value());
  EXPECT_THAT(**answer, IsOk());
  EXPECT_EQ(back.Getattr(file).attr().attr().size(), 0u) << "left to a later pass";
  back.peer->on_push = [&](const proto::Push& push) {
    proto::MetadataRequest release;
    release.mutable_release_lease()->set_id(push.revoke().id());
    if (push.has_revoke())
      back.Start(std::move(release), std::make_shared<std::optional<proto::MetadataReply>>());
  };
  for (const proto::Push& push : back.peer->pushes) back.peer->on_push(push);
  back.StayFor(15s);
  EXPECT_EQ(back.Getattr(file).attr().attr().size(), 50000u);
}

// Seed 401011861: it has overwritten bytes and nobody else knows in which files, so whoever may have cached
// the old ones is asked for the lease of that.
TEST(EvictionInRecovery, AsksCachesBackWhateverTheyAreOf) {
  Harness harness(4, WithLeases());
  TestClient lost(harness);
  TestClient back(harness);
  ASSERT_THAT(lost.Create(kRootFid, "f"), IsOk());
  harness.RunFor(10s);
  proto::MetadataRequest look;
  *look.mutable_lookup()->mutable_parent() = ToProto(kRootFid);
  look.mutable_lookup()->set_name("f");
  look.mutable_lookup()->set_want_lease(true);
  const proto::MetadataReply found = back.Call(std::move(look));
  ASSERT_EQ(found.directory_leases_size(), 1);

  harness.Restart();
  harness.RegisterOsts();
  back.Connect();
  proto::MetadataRequest reclaim;
  *reclaim.mutable_reclaim()->add_leases() = found.directory_leases(0);
  reclaim.mutable_reclaim()->set_last(true);
  ASSERT_THAT(back.Call(std::move(reclaim)), IsOk());
  uint64_t asked = 0;
  back.peer->on_push = [&](const proto::Push& push) {
    if (push.has_revoke()) asked = push.revoke().id();
  };
  for (int i = 0; i < 30 && asked == 0; ++i) back.StayFor(1s);
  EXPECT_EQ(asked, found.directory_leases(0).id());
}

// It has just died, or the way from here to there is cut: until its lease is over it may be serving clients.
TEST_F(EvictionTest, AnOstThatCannotBeToldIsOutlived) {
  ASSERT_THAT(client_.Create(kRootFid, "f"), IsOk());
  const Duration lease = 10 * harness_.options.heartbeat;
  harness_.RunFor(2s);
  harness_.osts.away = {2};
  const Duration died = harness_.clock.Now();
  proto::MetadataRequest request;  // the client itself is known to be gone
  request.mutable_connect()->set_name("test");
  request.mutable_connect()->set_version(3);
  request.mutable_connect()->set_nonce(4711);
  request.mutable_connect()->set_replaces(true);
  auto peer = std::make_shared<FakePeer>("again");
  ASSERT_THAT(harness_.Await(harness_.server->Handle(peer, request)), IsOk());
  const Duration took = harness_.clock.Now() - died;
  EXPECT_GE(took, lease - 1s) << "the OST was still serving";
  EXPECT_LE(took, lease + lease / 10 + 1s);
  harness_.osts.away = {};
  harness_.RunFor(3s);
  EXPECT_TRUE(harness_.osts.fenced[2].contains(client_.session));
}

// Its directory has gone, say. Its server goes on with its heartbeats, and so with serving clients: nobody
// waits until its lease is over, which they renew.
TEST_F(EvictionTest, AnOstThatIsFailingIsTold) {
  ASSERT_THAT(client_.Create(kRootFid, "f"), IsOk());
  harness_.osts.failing = {2};
  harness_.RunFor(2s);
  ASSERT_TRUE(Gone(harness_.options.session_timeout + 5s));
  EXPECT_TRUE(harness_.osts.fenced[2].contains(client_.session));
}

// The OSTs refuse the session already, so it must not come back whole.
TEST_F(EvictionTest, OneThatALossOfPowerInterruptsGoesOn) {
  ASSERT_THAT(client_.Create(kRootFid, "f"), IsOk());
  ASSERT_TRUE(harness_.RunUntil([&] { return harness_.osts.fenced[1].contains(client_.session); }));
  harness_.LosePower();
  harness_.RegisterOsts();
  EXPECT_THAT(client_.Connect(), testing::Not(IsOk()));
  EXPECT_TRUE(Gone(60s));
}

TEST_F(EvictionTest, ManyFencesThatAnOstMissedAreCaughtUpTogether) {
  harness_.osts.away = {3};
  harness_.RunFor(20s);
  std::vector<SessionId> evicted;
  for (int i = 0; i < 40; ++i) evicted.push_back(TestClient(harness_).session);
  harness_.RunFor(harness_.options.session_timeout + 5s);
  harness_.osts.away = {};
  harness_.osts.calls.clear();
  harness_.RunFor(3s);
  for (SessionId session : evicted) EXPECT_TRUE(harness_.osts.fenced[3].contains(session));
  EXPECT_EQ(std::count(harness_.osts.calls.begin(), harness_.osts.calls.end(), "fence 3"), 1);
}

// Whom it meant is not known: the session is refused everywhere, once more, and every OST is admitted.
TEST_F(EvictionTest, ADamagedFenceKeepsNoOstFromComingBack) {
  harness_.osts.away = {3};
  harness_.RunFor(20s);
  KvBatch damage;
  damage.Put(NumberKey(Table::kFence, 76), "abc");
  damage.Put(NumberKey(Table::kFence, 77), EncodeDestroy({{3}}));
  ASSERT_TRUE(harness_.Await(harness_.store.Commit(std::move(damage))).ok());
  harness_.osts.away = {};
  harness_.RunFor(3s);
  EXPECT_EQ(harness_.osts.fenced[3], (std::set<SessionId>{76, 77}));
  EXPECT_NE(FileOn(3), Fid()) << "it is not in use";
  harness_.Restart();
  harness_.RegisterOsts();
  harness_.RunFor(3s);
  for (OstIndex ost = 0; ost < 3; ++ost) EXPECT_EQ(harness_.osts.fenced[ost], std::set<SessionId>{76}) << ost;
  for (SessionId session : {76, 77})
    EXPECT_FALSE(harness_.store.Get(NumberKey(Table::kFence, session)).ok()) << session;
}

// A lookup or stat asks no OST, whatever is known of the file's size.
TEST_F(EvictionTest, NobodyWaitsForTheOstsOfAFileToSeeIt) {
  Fid f = FileOn(2);
  WriteUntold(f, 2, 50000);
  ASSERT_TRUE(Gone(harness_.options.session_timeout + 5s));
  harness_.osts.away = {0, 1, 2, 3};
  TestClient other(harness_);
  const Duration before = harness_.clock.Now();
  EXPECT_THAT(other.Getattr(f), IsOk());
  EXPECT_THAT(other.Open(f, O_RDWR), IsOk());
  EXPECT_EQ(harness_.clock.Now(), before);
}

}  // namespace
}  // namespace nacre::mds
