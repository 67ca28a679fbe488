// Names to inodes.
#include "tests/server/metadata/harness.h"

namespace nacre::mds {
namespace {

TEST(Lookup, UnderstandsDotAndDotDot) {
  Harness harness;
  TestClient client(harness);
  const Fid dir = FidOf(client.Mkdir(kRootFid, "d"));
  EXPECT_EQ(FidOf(client.Lookup(dir, ".")), dir);
  EXPECT_EQ(FidOf(client.Lookup(dir, "..")), kRootFid);
  EXPECT_EQ(FidOf(client.Lookup(kRootFid, "..")), kRootFid);
}

TEST(Lookup, CarriesLayoutAndInlineDataWhereAsked) {
  Harness harness;
  TestClient client(harness);
  const Fid file = FidOf(client.Create(kRootFid, "f"));
  proto::MetadataRequest write;
  *write.mutable_write_inline()->mutable_fid() = ToProto(file);
  write.mutable_write_inline()->set_data("inline");
  ASSERT_THAT(client.Call(write), IsOk());
  EXPECT_FALSE(client.Lookup(kRootFid, "f").entry().has_layout());
  auto whole = client.Lookup(kRootFid, "f", /*layout=*/true);
  EXPECT_EQ(whole.entry().data(), "inline");
  EXPECT_EQ(whole.entry().layout().components_size(), 1);
}

TEST(Lookup, Refusals) {
  Harness harness;
  TestClient client(harness);
  const Fid file = FidOf(client.Create(kRootFid, "f"));
  const Fid closed = FidOf(client.Mkdir(kRootFid, "closed", 0700));
  EXPECT_THAT(client.Lookup(kRootFid, "none"), Fails(ENOENT));
  EXPECT_THAT(client.Lookup(file, "x"), Fails(ENOTDIR));
  EXPECT_THAT(client.Lookup(kRootFid, std::string(256, 'n')), Fails(ENAMETOOLONG));
  EXPECT_THAT(client.Lookup(kRootFid, "a/b"), Fails(EINVAL));
  EXPECT_THAT(client.Lookup({7, 7, 7}, "x"), Fails(ENOENT));
  client.As(1000, 1000);
  EXPECT_THAT(client.Lookup(closed, "x"), Fails(EACCES));
}

}  // namespace
}  // namespace nacre::mds
