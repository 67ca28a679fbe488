// WRITE leases of directories at the MDS: who gets them, and which requests wait until their holder has told.
#include "server/metadata/directory_leases.h"

#include "tests/server/metadata/lease_clients.h"

namespace nacre::mds {
namespace {

using namespace std::chrono_literals;
using Answer = std::shared_ptr<std::optional<proto::MetadataReply>>;

class DirectoryLeases : public testing::Test {
 protected:
  DirectoryLeases() : harness_(2, WithLeases()), reader_(harness_), writer_(harness_) {
    directory_ = FidOf(writer_.Mkdir(kRootFid, "d"));
    file_ = FidOf(writer_.Mknod(directory_, "f", S_IFREG | 0644));
    below_ = FidOf(writer_.Mkdir(directory_, "below"));
    lease_ = Change(writer_, directory_, "g", S_IFREG | 0644, directory_);
    writer_.peer->pushes.clear();
  }

  // Makes something and wants leases. The one of `of` that it brings; 0: none.
  static uint64_t Change(TestClient& client, Fid parent, const std::string& name, uint32_t mode, Fid of) {
    proto::MetadataRequest request;
    *request.mutable_mknod()->mutable_parent() = ToProto(parent);
    request.mutable_mknod()->set_name(name);
    request.mutable_mknod()->set_mode(mode);
    request.set_want_lease(true);
    const proto::MetadataReply reply = client.Call(client.Prepare(std::move(request)));
    EXPECT_THAT(reply, IsOk());
    for (const proto::Lease& lease : reply.directory_leases()) {
      const bool any_of_made = !of && FromProto(lease.resource()) == FidOf(reply);
      if (lease.mode() == proto::LEASE_WRITE && (any_of_made || FromProto(lease.resource()) == of))
        return lease.id();
    }
    return 0;
  }

  // The writer tells what it has made in its directory. The lease of a directory that is made so; 0: none.
  uint64_t TellEarly(Fid made, uint32_t mode) {
    proto::MetadataRequest request;
    *request.mutable_mknod()->mutable_parent() = ToProto(directory_);
    request.mutable_mknod()->set_name("early");
    request.mutable_mknod()->set_mode(mode);
    *request.mutable_mknod()->mutable_fid() = ToProto(made);
    request.set_want_lease(true);
    const proto::MetadataReply reply = writer_.Call(writer_.Prepare(std::move(request)));
    EXPECT_THAT(reply, IsOk());
    for (const proto::Lease& lease : reply.directory_leases())
      if (FromProto(lease.resource()) == made) return lease.id();
    return 0;
  }

  // The request is not answered before the writer has been asked for its lease and has released it.
  proto::MetadataReply ExpectWaits(proto::MetadataRequest request, uint64_t lease) {
    auto answer = std::make_shared<std::optional<proto::MetadataReply>>();
    reader_.Start(reader_.Prepare(std::move(request)), answer);
    harness_.RunFor(100ms);
    EXPECT_FALSE(answer->has_value());
    EXPECT_EQ(writer_.peer->pushes.size(), 1u);
    if (!writer_.peer->pushes.empty()) {
      EXPECT_EQ(writer_.peer->pushes[0].revoke().id(), lease);
    }
    Release(writer_, lease);
    EXPECT_TRUE(harness_.RunUntil([&] { return answer->has_value(); }, 1s));
    return answer->value_or(proto::MetadataReply());
  }

  static proto::MetadataRequest GetattrOf(Fid fid) {
    proto::MetadataRequest request;
    *request.mutable_getattr()->mutable_fid() = ToProto(fid);
    return request;
  }

  Harness harness_;
  TestClient reader_, writer_;
  Fid directory_, file_, below_;
  uint64_t lease_ = 0;
};

TEST_F(DirectoryLeases, WhoChangesAndIsAloneMayWrite) {
  EXPECT_NE(lease_, 0u);
  EXPECT_EQ(Change(writer_, directory_, "h", S_IFREG | 0644, directory_), lease_);
}

TEST_F(DirectoryLeases, WhatItMakesIsItsOwn) {
  EXPECT_NE(Change(writer_, directory_, "new", S_IFDIR | 0755, Fid{}), 0u);
}

TEST_F(DirectoryLeases, AReadOfWhatIsCoveredWaits) {
  EXPECT_THAT(ExpectWaits(GetattrOf(file_), lease_), IsOk());
}

TEST_F(DirectoryLeases, SoDoesALookupOfAName) {
  proto::MetadataRequest request;
  *request.mutable_lookup()->mutable_parent() = ToProto(directory_);
  request.mutable_lookup()->set_name("nothing");
  EXPECT_EQ(ErrorOf(ExpectWaits(std::move(request), lease_)), ENOENT);
}

TEST_F(DirectoryLeases, AndAListing) {
  proto::MetadataRequest request;
  *request.mutable_readdir()->mutable_fid() = ToProto(directory_);
  EXPECT_THAT(ExpectWaits(std::move(request), lease_), IsOk());
}

TEST_F(DirectoryLeases, AndAnOpen) {
  proto::MetadataRequest request;
  *request.mutable_open()->mutable_fid() = ToProto(file_);
  EXPECT_THAT(ExpectWaits(std::move(request), lease_), IsOk());
}

TEST_F(DirectoryLeases, AndAChange) {
  proto::MetadataRequest request;
  *request.mutable_setattr()->mutable_fid() = ToProto(file_);
  request.mutable_setattr()->set_set_mode(true);
  request.mutable_setattr()->set_mode(0600);
  EXPECT_THAT(ExpectWaits(std::move(request), lease_), IsOk());
}

TEST_F(DirectoryLeases, AfterALookOthersReadAndNobodyWritesForAWhile) {
  proto::MetadataRequest request;
  *request.mutable_lookup()->mutable_parent() = ToProto(directory_);
  request.mutable_lookup()->set_name("f");
  request.mutable_lookup()->set_want_lease(true);
  const proto::MetadataReply reply = ExpectWaits(std::move(request), lease_);
  ASSERT_EQ(reply.directory_leases_size(), 1);
  EXPECT_EQ(reply.directory_leases(0).mode(), proto::LEASE_READ);
  Release(reader_, reply.directory_leases(0).id());
  EXPECT_EQ(Change(writer_, directory_, "h", S_IFREG | 0644, directory_), 0u);
  harness_.RunFor(6s);
  EXPECT_NE(Change(writer_, directory_, "i", S_IFREG | 0644, directory_), 0u);
}

// Their attributes may have been changed; whoever wants them asks for each.
TEST_F(DirectoryLeases, AListingLeavesOutWhatOthersWriteBelow) {
  Release(writer_, lease_);
  const uint64_t below = Change(writer_, below_, "x", S_IFREG | 0644, below_);
  ASSERT_NE(below, 0u);
  const proto::MetadataReply reply = reader_.Readdir(directory_, 0, 0, true);
  int with = 0, without = 0;
  for (const proto::DirEntry& entry : reply.readdir().entries()) ++(entry.has_attr() ? with : without);
  EXPECT_EQ(with, 2);
  EXPECT_EQ(without, 1);
  EXPECT_TRUE(writer_.peer->pushes.empty());
  EXPECT_THAT(ExpectWaits(GetattrOf(below_), below), IsOk());
}

// It may have been made early: whoever asks by its number waits for that.
TEST_F(DirectoryLeases, AnInodeThatIsNotThereMayBeUntold) {
  const Fid made{SessionSequence(writer_.session), 1, 0};
  auto answer = std::make_shared<std::optional<proto::MetadataReply>>();
  reader_.Start(reader_.Prepare(GetattrOf(made)), answer);
  harness_.RunFor(100ms);
  EXPECT_FALSE(answer->has_value());
  ASSERT_EQ(writer_.peer->pushes.size(), 1u);
  EXPECT_EQ(writer_.peer->pushes[0].revoke().id(), lease_);
  (void)TellEarly(made, S_IFREG | 0644);
  Release(writer_, lease_);
  ASSERT_TRUE(harness_.RunUntil([&] { return answer->has_value(); }, 1s));
  EXPECT_THAT(**answer, IsOk());
}

// Another session that waits to change a directory does not keep its maker from being alone in it.
TEST_F(DirectoryLeases, ADirectoryIsItsMakersThoughAnotherWaitsToChangeIt) {
  const Fid made{SessionSequence(writer_.session), 1, 0};
  proto::MetadataRequest inside;
  *inside.mutable_mknod()->mutable_parent() = ToProto(made);
  inside.mutable_mknod()->set_name("inside");
  inside.mutable_mknod()->set_mode(S_IFREG | 0644);
  auto answer = std::make_shared<std::optional<proto::MetadataReply>>();
  reader_.Start(reader_.Prepare(std::move(inside)), answer);
  harness_.RunFor(100ms);
  EXPECT_NE(TellEarly(made, S_IFDIR | 0755), 0u);
  Release(writer_, lease_);
  harness_.RunFor(100ms);
  EXPECT_FALSE(answer->has_value());
}

// The answer that named the lease was lost, or the server that would have named it has restarted.
TEST_F(DirectoryLeases, ADirectoryStaysItsMakersThoughItDoesNotKnowTheLease) {
  const Fid made{SessionSequence(writer_.session), 1, 0};
  const auto reclaim = [&] {
    proto::MetadataRequest request;
    proto::Lease* lease = request.mutable_reclaim()->add_leases();
    *lease->mutable_resource() = ToProto(made);
    lease->set_mode(proto::LEASE_WRITE);
    request.mutable_reclaim()->set_last(true);
    EXPECT_THAT(writer_.Call(std::move(request)), IsOk());
  };
  const uint64_t lease = TellEarly(made, S_IFDIR | 0755);
  ASSERT_NE(lease, 0u);
  writer_.Connect();
  reclaim();
  writer_.peer->pushes.clear();
  EXPECT_THAT(ExpectWaits(GetattrOf(made), lease), IsOk());

  harness_.Restart();
  reader_.Reconnect();
  writer_.Connect();
  reclaim();
  writer_.peer->pushes.clear();
  auto answer = std::make_shared<std::optional<proto::MetadataReply>>();
  reader_.Start(reader_.Prepare(GetattrOf(made)), answer);
  harness_.RunFor(100ms);
  EXPECT_FALSE(answer->has_value());
  ASSERT_EQ(writer_.peer->pushes.size(), 1u);
  Release(writer_, writer_.peer->pushes[0].revoke().id());
  EXPECT_TRUE(harness_.RunUntil([&] { return answer->has_value(); }, 1s));
}

// It has one name more than before then, and no directory's lease covers it any more.
TEST_F(DirectoryLeases, ALinkOfAFileThatWasUntoldWaitsForWhoHasItsDirectory) {
  const Fid made{SessionSequence(writer_.session), 1, 0};
  proto::MetadataRequest link;
  *link.mutable_link()->mutable_fid() = ToProto(made);
  *link.mutable_link()->mutable_parent() = ToProto(kRootFid);
  link.mutable_link()->set_name("second");
  auto answer = std::make_shared<std::optional<proto::MetadataReply>>();
  reader_.Start(reader_.Prepare(std::move(link)), answer);
  harness_.RunFor(100ms);
  (void)TellEarly(made, S_IFREG | 0644);
  harness_.RunFor(100ms);
  EXPECT_FALSE(answer->has_value());
  Release(writer_, lease_);
  ASSERT_TRUE(harness_.RunUntil([&] { return answer->has_value(); }, 1s));
  EXPECT_THAT(**answer, IsOk());
}

TEST_F(DirectoryLeases, OneThatIsNotThereAtAllIsAnsweredAtOnce) {
  EXPECT_EQ(ErrorOf(reader_.Getattr(Fid{77, 1, 0})), ENOENT);
  EXPECT_TRUE(writer_.peer->pushes.empty());
}

TEST_F(DirectoryLeases, ADeadWriterIsOutlived) {
  auto answer = std::make_shared<std::optional<proto::MetadataReply>>();
  reader_.Start(reader_.Prepare(GetattrOf(file_)), answer);
  EXPECT_TRUE(harness_.RunUntil([&] { return answer->has_value(); }, 5min));
}

// A session that is not back yet may have changed anything.
TEST_F(DirectoryLeases, AfterARestartReadsWaitForWhoMayHoldSomething) {
  harness_.Restart();
  reader_.Connect();
  auto answer = std::make_shared<std::optional<proto::MetadataReply>>();
  reader_.Start(reader_.Prepare(GetattrOf(file_)), answer);
  harness_.RunFor(1s);
  EXPECT_FALSE(answer->has_value());
  EXPECT_TRUE(harness_.RunUntil([&] { return answer->has_value(); }, 2min));
}

}  // namespace
}  // namespace nacre::mds
