#include "server/replication/follower.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

#include "tests/server/replication/member_fixture.h"

namespace nacre::replication {
namespace {

using testing::HasSubstr;

TEST(Follower, RefusesAnMdsThatSpeaksAnotherVersion) {
  MemberFixture f;
  f.Start(0);
  ASSERT_TRUE(f.AwaitLeader(0));
  f.Start(1);
  ASSERT_TRUE(f.AwaitInSync("0 1"));
  proto::CopyRequest request;
  request.set_from("mds9");
  request.set_to("mds1");
  request.mutable_ask();
  auto exchange = [&f](proto::CopyRequest asked) {
    std::optional<proto::CopyReply> reply;
    Spawn(f.machines[1].process->executor(), f.machines[1].member->Exchange(std::move(asked)),
          [&reply](proto::CopyReply value) { reply = std::move(value); });
    EXPECT_TRUE(f.RunUntil([&] { return reply.has_value(); }));
    return *reply;
  };
  EXPECT_EQ(exchange(request).status().error(), 0u);
  EXPECT_EQ(exchange(request).version(), 1u);
  request.set_version(2);
  const proto::CopyReply refused = exchange(request);
  EXPECT_EQ(refused.status().error(), static_cast<uint32_t>(EPROTO));
  EXPECT_THAT(refused.status().message(),
              HasSubstr("the MDS mds9 speaks version 2 of the protocol, the MDS mds1 version 1"));
  EXPECT_EQ(refused.version(), 1u) << "by which it knows what to speak";
}

}  // namespace
}  // namespace nacre::replication
