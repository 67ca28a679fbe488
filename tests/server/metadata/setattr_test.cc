#include "tests/server/metadata/harness.h"

namespace nacre::mds {
namespace {

class SetattrTest : public testing::Test {
 protected:
  proto::Attr Attr(Fid fid) { return client.Getattr(fid).attr().attr(); }
  proto::MetadataRequest Set(Fid fid) {
    proto::MetadataRequest request;
    *request.mutable_setattr()->mutable_fid() = ToProto(fid);
    return request;
  }

  Harness harness;
  TestClient client{harness};
};

TEST_F(SetattrTest, ChmodIsForTheOwnerAndKeepsTheType) {
  Fid f = FidOf(client.Create(kRootFid, "f", 0644));
  EXPECT_THAT(client.Chmod(f, 04755), IsOk());
  EXPECT_EQ(Attr(f).mode(), S_IFREG | 04755u);
  client.As(1000, 1000);
  EXPECT_THAT(client.Chmod(f, 0777), Fails(EPERM));
}

TEST_F(SetattrTest, WhoMayWriteMayDropSetuidAndNothingElse) {
  Fid f = FidOf(client.Create(kRootFid, "f", 0777));
  ASSERT_THAT(client.Chmod(f, 06777), IsOk());
  client.As(1000, 1000);
  EXPECT_THAT(client.Chmod(f, 0755), Fails(EPERM));
  EXPECT_THAT(client.Chmod(f, 07777), Fails(EPERM));
  EXPECT_THAT(client.Chmod(f, 0777), IsOk());
  EXPECT_EQ(Attr(f).mode() & 07777, 0777u);
  client.As(0, 0);
  ASSERT_THAT(client.Chmod(f, 04755), IsOk());
  client.As(1000, 1000);
  EXPECT_THAT(client.Chmod(f, 0755), Fails(EACCES));
}

TEST_F(SetattrTest, SetgidNeedsTheGroup) {
  Fid f = FidOf(client.Create(kRootFid, "f"));
  client.Chown(f, 1000, 50);
  client.As(1000, 1000);
  ASSERT_THAT(client.Chmod(f, 02755), IsOk());
  EXPECT_EQ(Attr(f).mode() & 07777, 0755u);
  client.As(1000, 1000, {50});
  ASSERT_THAT(client.Chmod(f, 02755), IsOk());
  EXPECT_EQ(Attr(f).mode() & 07777, 02755u);
}

TEST_F(SetattrTest, ChownRules) {
  Fid f = FidOf(client.Create(kRootFid, "f"));
  ASSERT_THAT(client.Chown(f, 1000, 1000), IsOk());
  client.As(1000, 1000, {50});
  EXPECT_THAT(client.Chown(f, 2000, -1), Fails(EPERM));
  EXPECT_THAT(client.Chown(f, -1, 60), Fails(EPERM));
  EXPECT_THAT(client.Chown(f, -1, 50), IsOk());
  EXPECT_THAT(client.Chown(f, 1000, -1), IsOk());
  client.As(2000, 2000);
  EXPECT_THAT(client.Chown(f, 2000, -1), Fails(EPERM));
}

TEST_F(SetattrTest, ChownClearsSetuidOnFilesAlone) {
  Fid f = FidOf(client.Create(kRootFid, "f")), d = FidOf(client.Mkdir(kRootFid, "d"));
  client.Chmod(f, 06755);
  client.Chmod(d, 06755);
  client.Chown(f, 1, 1);
  client.Chown(d, 1, 1);
  EXPECT_EQ(Attr(f).mode() & 07777, 0755u);
  EXPECT_EQ(Attr(d).mode() & 07777, 06755u);
  client.Chmod(f, 02644);  // mandatory locking's mark, no setgid program
  client.Chown(f, 2, 2);
  EXPECT_EQ(Attr(f).mode() & 07777, 02644u);
}

TEST_F(SetattrTest, TimesNeedOwnershipOrWriteForNow) {
  Fid f = FidOf(client.Create(kRootFid, "f", 0666));
  auto explicit_time = Set(f);
  explicit_time.mutable_setattr()->set_set_mtime(true);
  explicit_time.mutable_setattr()->mutable_mtime()->set_seconds(-5);
  explicit_time.mutable_setattr()->mutable_mtime()->set_nanos(999'999'999);
  ASSERT_THAT(client.Call(explicit_time), IsOk());
  EXPECT_EQ(Attr(f).mtime().seconds(), -5);
  EXPECT_EQ(Attr(f).mtime().nanos(), 999'999'999u);
  auto now = Set(f);
  now.mutable_setattr()->set_set_atime(true);
  now.mutable_setattr()->set_atime_now(true);
  client.As(1000, 1000);
  EXPECT_THAT(client.Call(explicit_time), Fails(EPERM));
  EXPECT_THAT(client.Call(now), IsOk());
  client.As(0, 0);
  client.Chmod(f, 0644);
  client.As(1000, 1000);
  EXPECT_THAT(client.Call(now), Fails(EACCES));
  client.As(0, 0);
  explicit_time.mutable_setattr()->mutable_mtime()->set_nanos(1'000'000'000);
  EXPECT_THAT(client.Call(explicit_time), Fails(EINVAL));
}

TEST_F(SetattrTest, TruncateChecksTypeAndPermission) {
  Fid f = FidOf(client.Create(kRootFid, "f", 0444)), d = FidOf(client.Mkdir(kRootFid, "d"));
  EXPECT_THAT(client.Truncate(d, 0), Fails(EISDIR));
  EXPECT_THAT(client.Truncate(FidOf(client.Mknod(kRootFid, "p", S_IFIFO | 0666)), 0), Fails(EINVAL));
  EXPECT_THAT(client.Truncate(f, uint64_t{1} << 63), Fails(EFBIG));
  client.As(1000, 1000);
  EXPECT_THAT(client.Truncate(f, 0), Fails(EACCES));
  auto through_handle = Set(f);
  through_handle.mutable_setattr()->set_set_size(true);
  through_handle.mutable_setattr()->set_open_handle(true);
  EXPECT_THAT(client.Call(through_handle), IsOk());
}

TEST_F(SetattrTest, TruncateOfInlineData) {
  Fid f = FidOf(client.Create(kRootFid, "f"));
  proto::MetadataRequest write;
  *write.mutable_write_inline()->mutable_fid() = ToProto(f);
  write.mutable_write_inline()->set_data("hello world");
  ASSERT_THAT(client.Call(write), IsOk());
  ASSERT_THAT(client.Truncate(f, 5), IsOk());
  EXPECT_EQ(client.Lookup(kRootFid, "f", true).entry().data(), "hello");
  ASSERT_THAT(client.Truncate(f, 7), IsOk());
  EXPECT_EQ(client.Lookup(kRootFid, "f", true).entry().data(), std::string("hello\0\0", 7));
  ASSERT_THAT(client.Truncate(f, 1 << 20), IsOk());
  EXPECT_FALSE(Attr(f).inline_data());
  EXPECT_EQ(Attr(f).size(), 1u << 20);
  EXPECT_EQ(harness.osts.CountObjects(), 1u);
}

TEST_F(SetattrTest, SizesHaveALimit) {
  Fid f = FidOf(client.Create(kRootFid, "f"));
  EXPECT_THAT(client.UpdateSize(f, ~uint64_t{0}), Fails(EFBIG));
  EXPECT_THAT(client.Truncate(f, ~uint64_t{0}), Fails(EFBIG));
}

}  // namespace
}  // namespace nacre::mds
