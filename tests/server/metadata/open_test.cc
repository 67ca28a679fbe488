// Open and close: access, truncation, and files that are kept while they are open.
#include "server/metadata/keys.h"
#include "tests/server/metadata/harness.h"

namespace nacre::mds {
namespace {

class OpenTest : public testing::Test {
 protected:
  proto::MetadataReply WriteInline(Fid fid, const std::string& data) {
    proto::MetadataRequest request;
    *request.mutable_write_inline()->mutable_fid() = ToProto(fid);
    request.mutable_write_inline()->set_data(data);
    return client.Call(request);
  }
  proto::Attr Attr(Fid fid) { return client.Getattr(fid).attr().attr(); }

  proto::MetadataRequest TruncatingOpen(Fid fid) {
    proto::MetadataRequest request;
    *request.mutable_open()->mutable_fid() = ToProto(fid);
    request.mutable_open()->set_flags(O_RDWR | O_TRUNC);
    return request;
  }
  proto::MetadataReply Send(const proto::MetadataRequest& prepared) {
    return harness.Await(harness.server->Handle(client.peer, prepared));
  }

  Harness harness;
  TestClient client{harness};
};

TEST_F(OpenTest, CarriesLayoutAndInlineData) {
  const Fid file = FidOf(client.Create(kRootFid, "f"));
  ASSERT_THAT(WriteInline(file, "inline"), IsOk());
  auto opened = client.Open(file, O_RDONLY);
  ASSERT_THAT(opened, IsOk());
  EXPECT_EQ(opened.entry().data(), "inline");
  EXPECT_EQ(opened.entry().layout().components_size(), 1);
  EXPECT_TRUE(opened.entry().attr().inline_data());
}

TEST_F(OpenTest, ChecksWhatTheFlagsAskFor) {
  const Fid file = FidOf(client.Create(kRootFid, "f", 0644));
  const Fid dir = FidOf(client.Mkdir(kRootFid, "d"));
  EXPECT_THAT(client.Open(dir, O_RDONLY | O_DIRECTORY), IsOk());
  EXPECT_THAT(client.Open(dir, O_RDWR), Fails(EISDIR));
  EXPECT_THAT(client.Open({7, 7, 7}), Fails(ENOENT));
  client.As(1000, 1000);
  EXPECT_THAT(client.Open(file, O_RDONLY), IsOk());
  EXPECT_THAT(client.Open(file, O_WRONLY), Fails(EACCES));
  EXPECT_THAT(client.Open(file, O_RDONLY | O_TRUNC), Fails(EACCES));
}

TEST_F(OpenTest, TruncEmptiesAndDropsSetuid) {
  const Fid file = FidOf(client.Create(kRootFid, "f", 0666));
  ASSERT_THAT(WriteInline(file, "inline"), IsOk());
  ASSERT_THAT(client.Chmod(file, 04777), IsOk());
  client.As(1000, 1000);
  auto opened = client.Open(file, O_WRONLY | O_TRUNC);
  ASSERT_THAT(opened, IsOk());
  EXPECT_EQ(opened.entry().attr().size(), 0u);
  EXPECT_EQ(opened.entry().attr().mode() & 07777, 0777u);
  EXPECT_EQ(opened.entry().data(), "");
}

TEST_F(OpenTest, AnUnlinkedFileLivesUntilItsLastClose) {
  const Fid file = FidOf(client.Create(kRootFid, "f"));
  ASSERT_THAT(client.Open(file, O_RDONLY), IsOk());
  ASSERT_THAT(client.Unlink(kRootFid, "f"), IsOk());
  ASSERT_THAT(client.Close(file, 1, /*write=*/true), IsOk());
  EXPECT_EQ(Attr(file).nlink(), 0u);
  EXPECT_THAT(client.Open(file, O_RDONLY), IsOk());
  ASSERT_THAT(client.Close(file), IsOk());
  EXPECT_THAT(client.Getattr(file), IsOk());
  ASSERT_THAT(client.Close(file), IsOk());
  EXPECT_THAT(client.Getattr(file), Fails(ENOENT));
  EXPECT_THAT(client.Close(file), IsOk());  // no such handle is no error
}

TEST_F(OpenTest, OneSessionsCloseLeavesTheOthersHandles) {
  TestClient other(harness);
  const Fid file = FidOf(client.Create(kRootFid, "f"));
  ASSERT_THAT(other.Open(file), IsOk());
  ASSERT_THAT(client.Unlink(kRootFid, "f"), IsOk());
  ASSERT_THAT(client.Close(file, 0), IsOk());  // all of this session's
  EXPECT_THAT(other.Getattr(file), IsOk());
  ASSERT_THAT(other.Close(file, 0), IsOk());
  EXPECT_THAT(other.Getattr(file), Fails(ENOENT));
}

// --- O_TRUNC is a mutation ---

TEST_F(OpenTest, ARepeatedOpenDoesNotTruncateAgain) {
  const Fid file = FidOf(client.Create(kRootFid, "f"));
  ASSERT_THAT(WriteInline(file, "old"), IsOk());
  const proto::MetadataRequest open = client.Prepare(TruncatingOpen(file));
  ASSERT_THAT(Send(open), IsOk());
  ASSERT_THAT(WriteInline(file, "what another client has written since"), IsOk());
  auto repeated = Send(open);
  ASSERT_THAT(repeated, IsOk());
  EXPECT_EQ(repeated.entry().attr().size(), 0u);
  EXPECT_EQ(Attr(file).size(), 37u);
  harness.Restart();
  client.Reconnect({});
  ASSERT_THAT(Send(open), IsOk());
  EXPECT_EQ(Attr(file).size(), 37u);
}

TEST_F(OpenTest, ARepeatedCreateDoesNotTruncateAgain) {
  const Fid file = FidOf(client.Create(kRootFid, "f"));
  ASSERT_THAT(WriteInline(file, "old"), IsOk());
  proto::MetadataRequest create;
  *create.mutable_create()->mutable_parent() = ToProto(kRootFid);
  create.mutable_create()->set_name("f");
  create.mutable_create()->set_flags(O_RDWR | O_CREAT | O_TRUNC);
  create = client.Prepare(std::move(create));
  ASSERT_THAT(Send(create), IsOk());
  EXPECT_EQ(Attr(file).size(), 0u);
  ASSERT_THAT(WriteInline(file, "since"), IsOk());
  harness.Restart();
  client.Reconnect({});
  ASSERT_THAT(Send(create), IsOk());
  EXPECT_EQ(Attr(file).size(), 5u);
}

TEST_F(OpenTest, AnOpenThatTruncatesNeedsASequence) {
  const Fid file = FidOf(client.Create(kRootFid, "f"));
  proto::MetadataRequest open = client.Prepare(TruncatingOpen(file));
  open.set_sequence(0);
  open.set_low_water(0);
  EXPECT_THAT(Send(open), Fails(EPROTO));
}

TEST_F(OpenTest, AReadOnlySessionOpensForReadingAlone) {
  const Fid file = FidOf(client.Create(kRootFid, "f"));
  ASSERT_THAT(WriteInline(file, "old"), IsOk());
  proto::MetadataRequest connect;
  connect.mutable_connect()->set_version(3);
  connect.mutable_connect()->set_nonce(4711);
  connect.mutable_connect()->set_read_only(true);
  TestClient reader(harness);
  reader.peer = std::make_shared<FakePeer>("reader");
  reader.session = harness.Await(harness.server->Handle(reader.peer, connect)).connect().session();
  EXPECT_THAT(reader.Open(file, O_RDONLY), IsOk());
  EXPECT_THAT(reader.Open(file, O_RDWR), Fails(EROFS));
  EXPECT_THAT(reader.Open(file, O_RDONLY | O_TRUNC), Fails(EROFS));
  EXPECT_EQ(Attr(file).size(), 3u);
}

// --- handles whose reply was lost ---

TEST_F(OpenTest, AnOpenWhoseReplyWasLostDoesNotKeepTheFile) {
  const Fid file = FidOf(client.Create(kRootFid, "f"));
  ASSERT_THAT(client.Open(file), IsOk());  // this one's reply does not arrive
  client.Reconnect({file});                // what Create has opened
  ASSERT_THAT(client.Open(file), IsOk());  // repeated
  ASSERT_THAT(client.Unlink(kRootFid, "f"), IsOk());
  ASSERT_THAT(client.Close(file), IsOk());
  EXPECT_THAT(client.Getattr(file), IsOk());
  ASSERT_THAT(client.Close(file), IsOk());
  EXPECT_THAT(client.Getattr(file), Fails(ENOENT));
}

TEST_F(OpenTest, AnOpenThatIsNotRepeatedLetsTheFileGo) {
  const Fid file = FidOf(client.Create(kRootFid, "f"));
  ASSERT_THAT(client.Unlink(kRootFid, "f"), IsOk());
  client.Reconnect({});
  client.StayFor(std::chrono::seconds(120));
  EXPECT_THAT(client.Getattr(file), Fails(ENOENT));
}

TEST_F(OpenTest, ADamagedOrphanKeepsNoOtherFromGoing) {
  const Fid damaged = FidOf(client.Create(kRootFid, "a"));
  const Fid file = FidOf(client.Create(kRootFid, "b"));
  ASSERT_THAT(client.Unlink(kRootFid, "a"), IsOk());
  ASSERT_THAT(client.Unlink(kRootFid, "b"), IsOk());
  harness.Crash();
  KvBatch batch;
  batch.Put(FidKey(Table::kInode, damaged), "damaged");
  ASSERT_TRUE(harness.Await(harness.store.Commit(std::move(batch))).ok());
  harness.Start();
  client.Reconnect({});
  harness.RunFor(std::chrono::seconds(10));
  EXPECT_THAT(client.Getattr(file), Fails(ENOENT));
}

}  // namespace
}  // namespace nacre::mds
