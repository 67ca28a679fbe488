#include "server/metadata/lease_report.h"

#include "tests/server/metadata/lease_clients.h"

namespace nacre::mds {
namespace {

using namespace std::chrono_literals;

proto::AdminReply LeasesOf(Harness& harness, const std::string& path) {
  proto::AdminRequest request;
  request.mutable_leases_of()->set_path(path);
  return harness.Await(harness.server->Administer(request));
}

class LeaseReport : public testing::Test {
 protected:
  LeaseReport() : harness_(2, WithLeases()), reader_(harness_), writer_(harness_) {
    directory_ = FidOf(writer_.Mkdir(FidOf(writer_.Mkdir(kRootFid, "a")), "b"));
    file_ = FidOf(writer_.Mknod(directory_, "f", S_IFREG | 0644));
  }

  proto::Lease Lease(TestClient& client, Fid fid) {
    proto::MetadataRequest request;
    *request.mutable_getattr()->mutable_fid() = ToProto(fid);
    request.mutable_getattr()->set_want_lease(true);
    const proto::MetadataReply reply = client.Call(std::move(request));
    return reply.directory_leases_size() == 1 ? reply.directory_leases(0) : proto::Lease();
  }

  Harness harness_;
  TestClient reader_, writer_;
  Fid directory_, file_;
};

TEST_F(LeaseReport, SaysWhoHoldsWhatAndForHowLong) {
  EXPECT_EQ(LeasesOf(harness_, "/a/b").leases_of().held_size(), 0);
  ASSERT_NE(Lease(reader_, directory_).id(), 0u);
  harness_.RunFor(3s);
  proto::MetadataRequest request;
  *request.mutable_acquire_lease()->mutable_resource() = ToProto(file_);
  request.mutable_acquire_lease()->set_mode(proto::LEASE_READ);
  ASSERT_THAT(writer_.Call(std::move(request)), IsOk());
  const proto::AdminReply reply = LeasesOf(harness_, "/a/b");
  ASSERT_THAT(reply, IsOk());
  EXPECT_EQ(FromProto(reply.leases_of().directory()), directory_);
  ASSERT_EQ(reply.leases_of().held_size(), 2);
  const proto::LeaseHeld& directory = reply.leases_of().held(0);
  EXPECT_EQ(directory.name(), "");
  EXPECT_EQ(directory.session(), reader_.session);
  EXPECT_EQ(directory.mode(), proto::LeaseHeld::READ);
  EXPECT_FALSE(directory.asked_back());
  EXPECT_GE(directory.held_ms(), 3000u);
  EXPECT_LT(directory.held_ms(), 4000u);
  EXPECT_EQ(reply.leases_of().held(1).name(), "f");
  EXPECT_EQ(reply.leases_of().held(1).session(), writer_.session);
  EXPECT_EQ(reply.leases_of().awaited_size(), 0);
}

TEST_F(LeaseReport, SaysForWhomSomebodyWaits) {
  const proto::Lease lease = Lease(reader_, directory_);
  ASSERT_NE(lease.id(), 0u);
  const uint64_t conflicts = harness_.Await(harness_.server->GetStatus()).conflicts();
  auto answer = std::make_shared<std::optional<proto::MetadataReply>>();
  proto::MetadataRequest change;
  *change.mutable_unlink()->mutable_parent() = ToProto(directory_);
  change.mutable_unlink()->set_name("f");
  writer_.Start(writer_.Prepare(std::move(change)), answer);
  harness_.RunFor(2s);
  ASSERT_FALSE(answer->has_value());
  const proto::LeasesOfReply waiting = LeasesOf(harness_, "a/b/").leases_of();
  ASSERT_EQ(waiting.held_size(), 1);
  EXPECT_TRUE(waiting.held(0).asked_back());
  EXPECT_GE(waiting.held(0).asked_back_ms(), 1900u);
  ASSERT_EQ(waiting.awaited_size(), 1);
  EXPECT_EQ(waiting.awaited(0).session(), writer_.session);
  EXPECT_TRUE(waiting.awaited(0).change());
  EXPECT_GE(waiting.awaited(0).waited_ms(), 1900u);
  EXPECT_EQ(waiting.changes(), 1u);
  proto::ClusterStatus status = harness_.Await(harness_.server->GetStatus());
  EXPECT_EQ(status.conflicts(), conflicts + 1);
  for (const proto::SessionState& session : status.sessions())
    EXPECT_EQ(session.leases_asked_back(), session.id() == reader_.session ? 1u : 0u);
  Release(reader_, lease.id());
  ASSERT_TRUE(harness_.RunUntil([&] { return answer->has_value(); }, 1s));
  const proto::LeasesOfReply after = LeasesOf(harness_, "/a/b").leases_of();
  EXPECT_EQ(after.held_size(), 0);
  EXPECT_EQ(after.awaited_size(), 0);
  EXPECT_EQ(after.changes(), 0u);
  EXPECT_EQ(after.none_granted_ms(), 0u) << "the wait has lasted for longer";
}

TEST_F(LeaseReport, WhatIsThereNotIsAnError) {
  EXPECT_THAT(LeasesOf(harness_, "/a/c"), Fails(ENOENT));
  EXPECT_THAT(LeasesOf(harness_, "/a/b/f"), Fails(ENOTDIR));
  EXPECT_THAT(LeasesOf(harness_, "/a/b/f/g"), Fails(ENOTDIR));
  EXPECT_THAT(LeasesOf(harness_, "/"), IsOk());
}

}  // namespace
}  // namespace nacre::mds
