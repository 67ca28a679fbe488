// READ leases of directories at the MDS: who gets them, which changes wait for their release.
#include "server/metadata/change_guard.h"

#include "server/metadata/lease_table.h"
#include "tests/server/metadata/lease_clients.h"

namespace nacre::mds {
namespace {

using namespace std::chrono_literals;
using Answer = std::shared_ptr<std::optional<proto::MetadataReply>>;

class ChangeGuardTest : public testing::Test {
 protected:
  ChangeGuardTest() : harness_(2, WithLeases()), reader_(harness_), writer_(harness_) {
    directory_ = FidOf(writer_.Mkdir(kRootFid, "d"));
    file_ = FidOf(writer_.Mknod(directory_, "f", S_IFREG | 0644));
    writer_.peer->pushes.clear();
    reader_.peer->pushes.clear();
    harness_.RunFor(1s);
  }

  // The lease of this directory that a lookup brings; 0: none.
  static uint64_t LookUp(TestClient& client, Fid parent, const std::string& name, Fid of) {
    proto::MetadataRequest request;
    *request.mutable_lookup()->mutable_parent() = ToProto(parent);
    request.mutable_lookup()->set_name(name);
    request.mutable_lookup()->set_want_lease(true);
    const proto::MetadataReply reply = client.Call(std::move(request));
    for (const proto::Lease& lease : reply.directory_leases()) {
      if (FromProto(lease.resource()) == of) return lease.id();
    }
    return 0;
  }

  // The mutation is not answered before the reader has been asked for this lease and has released it.
  void ExpectWaits(proto::MetadataRequest change, uint64_t lease) {
    reader_.peer->pushes.clear();
    auto answer = std::make_shared<std::optional<proto::MetadataReply>>();
    writer_.Start(std::move(change), answer);
    harness_.RunFor(100ms);
    EXPECT_FALSE(answer->has_value());
    ASSERT_EQ(reader_.peer->pushes.size(), 1u);
    EXPECT_EQ(reader_.peer->pushes[0].revoke().id(), lease);
    Release(reader_, lease);
    ASSERT_TRUE(harness_.RunUntil([&] { return answer->has_value(); }, 1s));
    EXPECT_THAT(**answer, IsOk());
  }

  static proto::MetadataRequest ChmodOf(Fid fid) {
    proto::MetadataRequest request;
    *request.mutable_setattr()->mutable_fid() = ToProto(fid);
    request.mutable_setattr()->set_set_mode(true);
    request.mutable_setattr()->set_mode(0600);
    return request;
  }

  Harness harness_;
  TestClient reader_, writer_;
  Fid directory_, file_;
};

// Others may have changed the file while it waited, and times do not go back.
TEST_F(ChangeGuardTest, AChangeThatWaitedHasTheTimeAtWhichItIsDone) {
  const uint64_t lease = LookUp(reader_, directory_, "f", directory_);
  ASSERT_NE(lease, 0u);
  harness_.RunFor(10ms);
  auto answer = std::make_shared<std::optional<proto::MetadataReply>>();
  writer_.Start(ChmodOf(file_), answer);
  harness_.RunFor(100ms);
  const WallTime released = harness_.clock.Wall();
  Release(reader_, lease);
  ASSERT_TRUE(harness_.RunUntil([&] { return answer->has_value(); }, 1s));
  EXPECT_GE(FromProto(writer_.Getattr(file_).attr().attr().ctime()), released);
}

TEST_F(ChangeGuardTest, AChangeOfAChildWaitsForTheReader) {
  const uint64_t lease = LookUp(reader_, directory_, "f", directory_);
  ASSERT_NE(lease, 0u);
  ExpectWaits(ChmodOf(file_), lease);
}

TEST_F(ChangeGuardTest, ANewNameWaitsForWhoKnowsThatItIsNotThere) {
  const uint64_t lease = LookUp(reader_, directory_, "g", directory_);  // beside the error
  ASSERT_NE(lease, 0u);
  proto::MetadataRequest request;
  *request.mutable_mknod()->mutable_parent() = ToProto(directory_);
  request.mutable_mknod()->set_name("g");
  request.mutable_mknod()->set_mode(S_IFREG | 0644);
  ExpectWaits(std::move(request), lease);
}

TEST_F(ChangeGuardTest, ALookupOfADirectoryBringsItsLeaseToo) {
  const uint64_t lease = LookUp(reader_, kRootFid, "d", directory_);
  ASSERT_NE(lease, 0u);
  ExpectWaits(ChmodOf(directory_), lease);
}

// Its commit comes long after the file was looked up.
TEST_F(ChangeGuardTest, AMoveOutWaitsForTheReaderOfWhereTheFileHasGone) {
  const Fid other = FidOf(writer_.Mkdir(kRootFid, "e"));
  proto::MetadataRequest write;
  *write.mutable_write_inline()->mutable_fid() = ToProto(file_);
  write.mutable_write_inline()->set_data("bytes");
  ASSERT_THAT(writer_.Call(std::move(write)), IsOk());
  harness_.osts.away = {0, 1};
  proto::MetadataRequest move_out;
  *move_out.mutable_move_out()->mutable_fid() = ToProto(file_);
  auto answer = std::make_shared<std::optional<proto::MetadataReply>>();
  writer_.Start(std::move(move_out), answer);
  harness_.RunFor(100ms);
  ASSERT_THAT(writer_.Rename(directory_, "f", other, "f"), IsOk());
  const uint64_t lease = LookUp(reader_, other, "f", other);
  ASSERT_NE(lease, 0u);
  reader_.peer->pushes.clear();
  harness_.osts.away = {};
  harness_.RunFor(3s);
  EXPECT_FALSE(answer->has_value());
  ASSERT_EQ(reader_.peer->pushes.size(), 1u);
  EXPECT_EQ(reader_.peer->pushes[0].revoke().id(), lease);
  Release(reader_, lease);
  ASSERT_TRUE(harness_.RunUntil([&] { return answer->has_value(); }, 5s));
  EXPECT_THAT(**answer, IsOk());
}

TEST_F(ChangeGuardTest, WhoChangesKeepsItsOwn) {
  ASSERT_NE(LookUp(writer_, directory_, "f", directory_), 0u);
  EXPECT_THAT(writer_.Chmod(file_, 0600), IsOk());
  EXPECT_TRUE(writer_.peer->pushes.empty());
}

TEST_F(ChangeGuardTest, AFileWithTwoLinksIsNotCovered) {
  ASSERT_THAT(writer_.Link(file_, kRootFid, "other"), IsOk());
  ASSERT_NE(LookUp(reader_, directory_, "f", directory_), 0u);
  EXPECT_THAT(writer_.Chmod(file_, 0600), IsOk());
  EXPECT_TRUE(reader_.peer->pushes.empty());
}

// Where several change and look, a request to the MDS costs less than a revocation.
TEST_F(ChangeGuardTest, AfterAConflictTheDirectoryIsLeftWithoutForAWhile) {
  ExpectWaits(ChmodOf(file_), LookUp(reader_, directory_, "f", directory_));
  EXPECT_EQ(LookUp(reader_, directory_, "f", directory_), 0u);
  EXPECT_EQ(LookUp(writer_, directory_, "f", directory_), 0u);
  harness_.RunFor(6s);
  EXPECT_NE(LookUp(reader_, directory_, "f", directory_), 0u);
}

TEST_F(ChangeGuardTest, ADeadReaderIsOutlived) {
  ASSERT_NE(LookUp(reader_, directory_, "f", directory_), 0u);
  auto answer = std::make_shared<std::optional<proto::MetadataReply>>();
  writer_.Start(writer_.Prepare(ChmodOf(file_)), answer);
  EXPECT_TRUE(harness_.RunUntil([&] { return answer->has_value(); }, 5min));
}

TEST(LeaseTable, NothingIsGrantedWhileAChangeIsUnderWay) {
  const Fid directory{1, 2, 0};
  LeaseTable table(100);
  table.BeginChange(directory, 1);
  table.BeginChange(directory, 1);
  EXPECT_FALSE(table.TryGrantRead(1, directory, 1s));
  table.EndChange(directory);
  EXPECT_FALSE(table.TryGrantRead(1, directory, 1s));
  table.EndChange(directory);
  EXPECT_TRUE(table.TryGrantRead(1, directory, 1s));
  table.GrantNoneUntil(directory, proto::LEASE_READ, 3s);
  EXPECT_FALSE(table.TryGrantRead(2, directory, 2s));
  EXPECT_TRUE(table.TryGrantRead(2, directory, 3s));
}

}  // namespace
}  // namespace nacre::mds
