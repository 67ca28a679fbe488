#include "tests/server/metadata/harness.h"

namespace nacre::mds {
namespace {

TEST(Statfs, AddsUpTheSpaceOfAllOsts) {
  Harness harness(3);
  TestClient client(harness);
  proto::MetadataRequest request;
  request.mutable_statfs();
  auto reply = client.Call(request);
  ASSERT_THAT(reply, IsOk());
  EXPECT_EQ(reply.statfs().total_bytes(), 3 * harness.ost_bytes);
  EXPECT_LE(reply.statfs().available_bytes(), reply.statfs().total_bytes());
  EXPECT_EQ(reply.statfs().available_bytes() % (3 << 20), 0u) << "whole stripes of each";
  uint64_t before = reply.statfs().inodes();
  ASSERT_THAT(client.Create(kRootFid, "a"), IsOk());
  EXPECT_EQ(client.Call(request).statfs().inodes(), before + 1);
}

}  // namespace
}  // namespace nacre::mds
