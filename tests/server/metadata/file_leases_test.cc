// WRITE leases of single files at the MDS: who gets them, and which requests wait until their holder has
// told.
#include "server/metadata/file_leases.h"

#include <fcntl.h>

#include "tests/server/metadata/lease_clients.h"

namespace nacre::mds {
namespace {

using namespace std::chrono_literals;
using Answer = std::shared_ptr<std::optional<proto::MetadataReply>>;

class FileLeases : public testing::Test {
 protected:
  FileLeases() : harness_(2, WithLeases()), other_(harness_), holder_(harness_) {
    directory_ = FidOf(holder_.Mkdir(kRootFid, "d"));
    EXPECT_THAT(other_.Mknod(directory_, "g", S_IFREG | 0644), IsOk());
    file_ = FidOf(holder_.Create(directory_, "f"));
  }

  proto::MetadataReply Write(TestClient& client, uint64_t size, bool want_lease = false) {
    proto::MetadataRequest request;
    *request.mutable_write_inline()->mutable_fid() = ToProto(file_);
    request.mutable_write_inline()->set_offset(size - 1);
    request.mutable_write_inline()->set_data("x");
    request.set_want_lease(want_lease);
    request.set_want_file_lease(true);
    const proto::MetadataReply reply = client.Call(client.Prepare(std::move(request)));
    EXPECT_THAT(reply, IsOk());
    return reply;
  }
  // Takes the lease.
  void Take() {
    lease_ = Write(holder_, 1).file_lease().id();
    ASSERT_NE(lease_, 0u);
    holder_.peer->pushes.clear();
  }
  Answer Ask(proto::MetadataRequest request) {
    auto answer = std::make_shared<std::optional<proto::MetadataReply>>();
    other_.Start(other_.Prepare(std::move(request)), answer);
    harness_.RunFor(100ms);
    return answer;
  }
  // It is answered when the holder has been asked for its lease and has released it.
  proto::MetadataReply ExpectWaits(proto::MetadataRequest request) {
    const Answer answer = Ask(std::move(request));
    EXPECT_FALSE(answer->has_value());
    EXPECT_EQ(holder_.peer->pushes.size(), 1u);
    if (!holder_.peer->pushes.empty()) {
      EXPECT_EQ(holder_.peer->pushes[0].revoke().id(), lease_);
    }
    Write(holder_, 5);  // what it has held back
    Release(holder_, lease_);
    EXPECT_TRUE(harness_.RunUntil([&] { return answer->has_value(); }, 1s));
    return answer->value_or(proto::MetadataReply());
  }
  proto::MetadataReply ExpectAtOnce(proto::MetadataRequest request) {
    const Answer answer = Ask(std::move(request));
    EXPECT_TRUE(answer->has_value());
    EXPECT_TRUE(holder_.peer->pushes.empty());
    return answer->value_or(proto::MetadataReply());
  }
  proto::MetadataRequest LookupOf(const std::string& name) {
    proto::MetadataRequest request;
    *request.mutable_lookup()->mutable_parent() = ToProto(directory_);
    request.mutable_lookup()->set_name(name);
    request.mutable_lookup()->set_want_lease(true);
    return request;
  }
  proto::MetadataRequest RenameOf(const std::string& name, const std::string& to) {
    proto::MetadataRequest request;
    *request.mutable_rename()->mutable_parent() = ToProto(directory_);
    *request.mutable_rename()->mutable_new_parent() = ToProto(directory_);
    request.mutable_rename()->set_name(name);
    request.mutable_rename()->set_new_name(to);
    return request;
  }
  proto::MetadataRequest UnlinkOf(const std::string& name) {
    proto::MetadataRequest request;
    *request.mutable_unlink()->mutable_parent() = ToProto(directory_);
    request.mutable_unlink()->set_name(name);
    return request;
  }
  proto::MetadataRequest AcquireOf(proto::LeaseMode mode) {
    proto::MetadataRequest request;
    *request.mutable_acquire_lease()->mutable_resource() = ToProto(file_);
    request.mutable_acquire_lease()->set_mode(mode);
    return request;
  }

  Harness harness_;
  TestClient other_, holder_;
  Fid directory_, file_;
  uint64_t lease_ = 0;
};

TEST_F(FileLeases, WhoWritesAndIsAloneGetsIt) {
  const proto::MetadataReply first = Write(holder_, 1);
  EXPECT_NE(first.file_lease().id(), 0u);
  EXPECT_EQ(first.file_lease().mode(), proto::LEASE_WRITE);
  EXPECT_FALSE(first.file_lease().late());
  EXPECT_EQ(FromProto(first.file_lease().resource()), file_);
  EXPECT_EQ(first.attr().alone_under(), first.file_lease().id());
  EXPECT_EQ(Write(holder_, 2).file_lease().id(), first.file_lease().id()) << "told again";
}

TEST_F(FileLeases, WhoGetsTheDirectoryNeedsNone) {
  const proto::MetadataReply reply = Write(holder_, 1, /*want_lease=*/true);
  ASSERT_EQ(reply.directory_leases_size(), 1);
  EXPECT_FALSE(reply.has_file_lease());
  EXPECT_EQ(reply.attr().alone_under(), reply.directory_leases(0).id());
}

TEST_F(FileLeases, IsNotGrantedBesideAnotherWriter) {
  EXPECT_THAT(other_.Open(file_, O_RDWR), IsOk());
  EXPECT_FALSE(Write(holder_, 1).has_file_lease());
}

TEST_F(FileLeases, IsNotGrantedBesideAReader) {
  const proto::MetadataReply pages = other_.Call(AcquireOf(proto::LEASE_READ));
  ASSERT_NE(pages.lease().lease().id(), 0u);
  auto written = std::make_shared<std::optional<proto::MetadataReply>>();
  proto::MetadataRequest request;
  *request.mutable_update_size()->mutable_fid() = ToProto(file_);
  request.set_want_file_lease(true);
  holder_.Start(holder_.Prepare(std::move(request)), written);
  harness_.RunFor(100ms);
  Release(other_, pages.lease().lease().id());
  ASSERT_TRUE(harness_.RunUntil([&] { return written->has_value(); }, 1s));
  EXPECT_FALSE((*written)->has_file_lease());
  EXPECT_TRUE(Write(holder_, 2).has_file_lease());
}

TEST_F(FileLeases, IsNotGrantedOfAFileWithTwoNames) {
  EXPECT_THAT(holder_.Link(file_, directory_, "second"), IsOk());
  EXPECT_FALSE(Write(holder_, 1).has_file_lease());
}

TEST_F(FileLeases, IsNotGrantedForAWhileWhenOthersHaveWantedTheFile) {
  Take();
  const proto::MetadataReply seen = ExpectWaits(LookupOf("f"));
  for (const proto::Lease& lease : seen.directory_leases()) Release(other_, lease.id());
  EXPECT_FALSE(Write(holder_, 6).has_file_lease());
  holder_.StayFor(harness_.options.peace);
  EXPECT_TRUE(Write(holder_, 7).has_file_lease());
}

TEST_F(FileLeases, StandsBesideReadOfTheSameSession) {
  const uint64_t pages = holder_.Call(AcquireOf(proto::LEASE_READ)).lease().lease().id();
  Take();
  EXPECT_NE(lease_, pages);
  Release(holder_, lease_);
  EXPECT_EQ(holder_.Call(AcquireOf(proto::LEASE_READ)).lease().lease().id(), pages);
}

// Where the OSTs say how far it has written, after it was evicted: others come behind that.
TEST_F(FileLeases, WhoWaitsForTheDeadSeesHowFarTheyHaveWritten) {
  Take();
  WriteUntold(harness_, holder_, file_, 50000);
  harness_.osts.delay = [&](const proto::ObjectRequest& request) -> Task<void> {
    if (request.has_list_grown()) co_await harness_.clock.Sleep(20ms);
  };
  proto::MetadataRequest append;
  *append.mutable_append()->mutable_fid() = ToProto(file_);
  append.mutable_append()->set_length(7);
  const Answer answer = Ask(std::move(append));
  EXPECT_FALSE(answer->has_value());
  EXPECT_EQ(holder_.peer->pushes.size(), 1u);
  ASSERT_TRUE(harness_.RunUntil([&] { return answer->has_value(); },
                                harness_.options.session_timeout + harness_.options.revoke_timeout));
  EXPECT_EQ((*answer)->append().offset(), 50000u);
}

// Both write to the file's objects, and have told so once.
class SharedFile : public FileLeases {
 protected:
  SharedFile() {
    proto::MetadataRequest out;
    *out.mutable_move_out()->mutable_fid() = ToProto(file_);
    EXPECT_THAT(holder_.Call(std::move(out)), IsOk());
    for (TestClient* client : {&holder_, &other_}) EXPECT_THAT(client->Open(file_, O_RDWR), IsOk());
    EXPECT_THAT(holder_.Call(Tell(100)), IsOk());
    const proto::MetadataReply told = other_.Call(Tell(200));
    EXPECT_EQ(told.file_lease().mode(), proto::LEASE_SHARED);
    shared_ = told.file_lease().id();
  }
  proto::MetadataRequest Tell(uint64_t size) {
    proto::MetadataRequest request;
    *request.mutable_update_size()->mutable_fid() = ToProto(file_);
    request.mutable_update_size()->set_size(size);
    request.mutable_update_size()->set_beside(true);
    request.set_want_file_lease(true);
    request.set_may_share(true);
    return request;
  }

  uint64_t shared_ = 0;  // the lease of the other
};

// Its attributes then are of before the other's last change, though nobody shares the file any more.
TEST_F(SharedFile, WhoIsAnsweredLateIsNotCovered) {
  harness_.store.SetCommitPause([&]() -> Task<void> { co_await harness_.clock.Sleep(10ms); });
  auto answer = std::make_shared<std::optional<proto::MetadataReply>>();
  holder_.Start(Tell(150), answer);
  harness_.RunFor(1ms);
  Release(other_, shared_);
  EXPECT_FALSE(answer->has_value());
  ASSERT_TRUE(harness_.RunUntil([&] { return answer->has_value(); }, 1s));
  EXPECT_FALSE((*answer)->attr().attr().has_parent());
  EXPECT_TRUE(holder_.Call(Tell(160)).attr().attr().has_parent());
}

TEST_F(SharedFile, WhoIsAnsweredOnceMoreIsNotCovered) {
  const proto::MetadataRequest request = holder_.Prepare(Tell(150));
  auto ask = [&] { return harness_.Await(harness_.server->Handle(holder_.peer, request)); };
  EXPECT_FALSE(ask().attr().attr().has_parent());
  EXPECT_THAT(other_.Call(Tell(300)), IsOk());
  Release(other_, shared_);
  const proto::MetadataReply again = ask();
  EXPECT_EQ(again.attr().attr().size(), 200u);
  EXPECT_FALSE(again.attr().attr().has_parent());
}

TEST_F(FileLeases, ALookWaits) {
  Take();
  EXPECT_EQ(ExpectWaits(LookupOf("f")).entry().attr().size(), 5u);
}

TEST_F(FileLeases, AnOpenWaits) {
  Take();
  proto::MetadataRequest open;
  *open.mutable_open()->mutable_fid() = ToProto(file_);
  EXPECT_EQ(ExpectWaits(std::move(open)).entry().attr().size(), 5u);
}

TEST_F(FileLeases, AReaderOfPagesWaits) {
  Take();
  EXPECT_NE(ExpectWaits(AcquireOf(proto::LEASE_READ)).lease().lease().id(), 0u);
}

TEST_F(FileLeases, AChangeWaits) {
  Take();
  proto::MetadataRequest set;
  *set.mutable_setattr()->mutable_fid() = ToProto(file_);
  set.mutable_setattr()->set_set_mode(true);
  set.mutable_setattr()->set_mode(0600);
  EXPECT_EQ(ExpectWaits(std::move(set)).attr().attr().size(), 5u);
}

TEST_F(FileLeases, ARenameWaits) {
  Take();
  EXPECT_EQ(ExpectWaits(RenameOf("f", "h")).entry().attr().size(), 5u);
}

TEST_F(FileLeases, ARenameToItselfWaits) {
  Take();
  EXPECT_EQ(ExpectWaits(RenameOf("f", "f")).entry().attr().size(), 5u);
}

TEST_F(FileLeases, ARenameOverItWaits) {
  Take();
  EXPECT_EQ(ExpectWaits(RenameOf("g", "f")).entry().replaced().size(), 5u);
}

TEST_F(FileLeases, ItsRemovalWaits) {
  Take();
  EXPECT_EQ(ExpectWaits(UnlinkOf("f")).attr().attr().size(), 5u);
}

TEST_F(FileLeases, ASecondNameWaits) {
  Take();
  proto::MetadataRequest link;
  *link.mutable_link()->mutable_fid() = ToProto(file_);
  *link.mutable_link()->mutable_parent() = ToProto(kRootFid);
  link.mutable_link()->set_name("second");
  EXPECT_EQ(ExpectWaits(std::move(link)).entry().attr().size(), 5u);
}

TEST_F(FileLeases, ACreateThatFindsItWaits) {
  Take();
  proto::MetadataRequest create;
  *create.mutable_create()->mutable_parent() = ToProto(directory_);
  create.mutable_create()->set_name("f");
  create.mutable_create()->set_mode(0644);
  create.mutable_create()->set_flags(O_RDWR | O_CREAT);
  EXPECT_EQ(ExpectWaits(std::move(create)).entry().attr().size(), 5u);
}

TEST_F(FileLeases, OthersInTheDirectoryAskNobody) {
  Take();
  EXPECT_THAT(ExpectAtOnce(LookupOf("g")), IsOk());
  EXPECT_THAT(ExpectAtOnce(RenameOf("g", "h")), IsOk());
  EXPECT_THAT(ExpectAtOnce(UnlinkOf("h")), IsOk());
}

TEST_F(FileLeases, AListingLeavesItsAttributesOut) {
  Take();
  proto::MetadataRequest list;
  *list.mutable_readdir()->mutable_fid() = ToProto(directory_);
  list.mutable_readdir()->set_plus(true);
  const proto::MetadataReply reply = ExpectAtOnce(std::move(list));
  EXPECT_EQ(reply.readdir().entries_size(), 2);
  for (const proto::DirEntry& entry : reply.readdir().entries())
    EXPECT_EQ(entry.has_attr(), entry.name() != "f") << entry.name();
}

// The holder of the directory does not know the file. If it were asked, two clients with a file each in the
// other's directory would wait for each other.
TEST_F(FileLeases, ItsHoldersChangesTakeNobodysDirectory) {
  Take();
  ASSERT_EQ(ExpectAtOnce(LookupOf("g")).directory_leases_size(), 1);
  other_.peer->pushes.clear();
  Write(holder_, 2);
  EXPECT_TRUE(other_.peer->pushes.empty());
  Release(holder_, lease_);
  auto written = std::make_shared<std::optional<proto::MetadataReply>>();
  proto::MetadataRequest request;
  *request.mutable_update_size()->mutable_fid() = ToProto(file_);
  holder_.Start(holder_.Prepare(std::move(request)), written);
  harness_.RunFor(100ms);
  EXPECT_FALSE(written->has_value()) << "without the lease it has to wait for who has the directory";
  EXPECT_EQ(other_.peer->pushes.size(), 1u);
}

TEST_F(FileLeases, WhatComesLateKeepsNobodyFromRemovingTheFile) {
  Take();
  const Answer removed = Ask(UnlinkOf("f"));
  EXPECT_FALSE(removed->has_value());
  const proto::MetadataReply late = holder_.Call(AcquireOf(proto::LEASE_WRITE));
  ASSERT_NE(late.lease().lease().id(), 0u);
  EXPECT_TRUE(late.lease().lease().late());
  Release(holder_, lease_);
  EXPECT_TRUE(harness_.RunUntil([&] { return removed->has_value(); }, 1s));
}

TEST_F(FileLeases, WhatComesLateIsWaitedForByWhoLooks) {
  Take();
  const Answer found = Ask(LookupOf("f"));
  const uint64_t late = holder_.Call(AcquireOf(proto::LEASE_WRITE)).lease().lease().id();
  Release(holder_, lease_);
  harness_.RunFor(1s);
  EXPECT_FALSE(found->has_value());
  EXPECT_FALSE(Write(holder_, 6).has_file_lease()) << "as long as data comes late";
  Release(holder_, late);
  EXPECT_TRUE(harness_.RunUntil([&] { return found->has_value(); }, 1s));
}

// After a restart of the MDS the holder says what it has; until then others wait.
TEST_F(FileLeases, OutlivesARestart) {
  Take();
  harness_.Restart();
  other_.Reconnect();
  const Answer found = Ask(LookupOf("f"));
  EXPECT_FALSE(found->has_value());
  EXPECT_THAT(holder_.Connect(), IsOk());
  proto::MetadataRequest reclaim;
  proto::Lease* lease = reclaim.mutable_reclaim()->add_leases();
  *lease->mutable_resource() = ToProto(file_);
  lease->set_mode(proto::LEASE_WRITE);
  lease->set_id(lease_);
  reclaim.mutable_reclaim()->set_last(true);
  EXPECT_THAT(holder_.Call(std::move(reclaim)), IsOk());
  harness_.RunFor(100ms);
  EXPECT_FALSE(found->has_value());
  Release(holder_, lease_);
  EXPECT_TRUE(harness_.RunUntil([&] { return found->has_value(); }, 1s));
}

TEST_F(FileLeases, EndsWithItsSession) {
  Take();
  const Answer found = Ask(LookupOf("f"));
  EXPECT_TRUE(harness_.RunUntil([&] { return found->has_value(); }, 120s)) << "the holder is evicted";
  EXPECT_THAT(**found, IsOk());
}

}  // namespace
}  // namespace nacre::mds
