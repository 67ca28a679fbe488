// Open and close: access, truncation, and files that are kept while they are open.
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

}  // namespace
}  // namespace nacre::mds
