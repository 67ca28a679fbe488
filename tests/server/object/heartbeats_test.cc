#include <gtest/gtest.h>

#include <cerrno>

#include "tests/server/object/fake_mgs.h"

namespace nacre {
namespace {

TEST(Heartbeats, RegistersJoinsTheClusterAndBeats) {
  auto cluster = std::make_shared<FakeMgs>();
  ServerFixture f(OftenBeating(), cluster);
  RunUntil(&f, [&] { return cluster->heartbeats.size() >= 3; });
  ASSERT_EQ(cluster->registrations.size(), 1u);
  const proto::RegisterOssRequest request = cluster->registrations[0];
  EXPECT_EQ(request.cluster_uuid(), "");
  EXPECT_EQ(request.address(), "inproc:oss");
  ASSERT_EQ(request.osts_size(), 2);
  EXPECT_EQ(request.osts(1).index(), 5u);
  EXPECT_EQ(request.osts(1).uuid().size(), 36u);
  EXPECT_EQ(request.osts(1).total_bytes(), ServerFixture::kBlocks * kBlockSize);
  EXPECT_EQ(cluster->heartbeats[0].instance(), request.instance());
  ASSERT_TRUE(f.Restart().ok());
  RunUntil(&f, [&] { return cluster->registrations.size() >= 2; });
  EXPECT_EQ(cluster->registrations[1].cluster_uuid(), "cluster-1");
  EXPECT_EQ(cluster->registrations[1].osts(1).uuid(), request.osts(1).uuid());
  EXPECT_NE(cluster->registrations[1].instance(), request.instance());
}

TEST(Heartbeats, GoesOnWhenTheMgsIsAwayAndRegistersAgainWhenItHasForgotten) {
  auto cluster = std::make_shared<FakeMgs>();
  cluster->away = true;
  ServerFixture f(OftenBeating(), cluster);
  RunUntil(&f, [&] { return cluster->registrations.size() >= 3; });
  cluster->away = false;
  RunUntil(&f, [&] { return !cluster->heartbeats.empty(); });
  size_t before = cluster->registrations.size();
  cluster->forget = true;
  RunUntil(&f, [&] { return cluster->registrations.size() > before; });
}

bool Serves(ServerFixture* f, SessionId session) {
  proto::ObjectRequest stat;
  *stat.mutable_stat()->mutable_object() = ToProto(ObjectId{9, 0});
  auto client = f->Client(session);
  return f->Call(client.get(), stat).ok();
}

// A fence that the server has missed may concern the client that asks.
TEST(Heartbeats, ClientsAreServedOnlyWhenTheMgsHasAdmittedTheServer) {
  auto cluster = std::make_shared<FakeMgs>();
  cluster->refusal = ErrnoError(EINVAL, "a fence could not be told");
  ServerFixture f(OftenBeating(), cluster);
  RunUntil(&f, [&] { return cluster->registrations.size() >= 3; });
  EXPECT_FALSE(Serves(&f, 1));
  EXPECT_TRUE(Serves(&f, 0)) << "the MDS, which has to tell it";
  cluster->refusal = OkStatus();
  RunUntil(&f, [&] { return !cluster->heartbeats.empty(); });
  EXPECT_TRUE(Serves(&f, 1));
}

TEST(Heartbeats, WithAnMgsOfAnotherVersionNobodyIsServed) {
  auto cluster = std::make_shared<FakeMgs>();
  cluster->version = 2;
  ServerFixture f(OftenBeating(), cluster);
  RunUntil(&f, [&] { return cluster->registrations.size() >= 3; });
  EXPECT_EQ(cluster->registrations[0].version(), 1u);
  EXPECT_EQ(cluster->registrations[0].oldest_version(), 1u);
  EXPECT_TRUE(cluster->heartbeats.empty());
  EXPECT_FALSE(Serves(&f, 1));
  cluster->version = 1;  // it has been upgraded meanwhile
  RunUntil(&f, [&] { return !cluster->heartbeats.empty(); });
  EXPECT_TRUE(Serves(&f, 1));
}

TEST(Heartbeats, WithoutAnswersOfTheMgsClientsAreRefusedWhenTheLeaseIsOver) {
  auto cluster = std::make_shared<FakeMgs>();
  cluster->lease_ms = 300;
  ServerFixture f(OftenBeating(), cluster);
  RunUntil(&f, [&] { return !cluster->heartbeats.empty(); });
  EXPECT_TRUE(Serves(&f, 1));
  cluster->away = true;
  const Duration over = RealClock().Now() + 400ms;
  RunUntil(&f, [&] { return RealClock().Now() > over; });
  EXPECT_FALSE(Serves(&f, 1));
  EXPECT_TRUE(Serves(&f, 0));
  const size_t beats = cluster->heartbeats.size();
  cluster->away = false;
  RunUntil(&f, [&] { return cluster->heartbeats.size() > beats + 1; });
  EXPECT_TRUE(Serves(&f, 1));
}

TEST(Heartbeats, ABadBlockIsReported) {
  auto cluster = std::make_shared<FakeMgs>();
  ServerFixture f(OftenBeating(), cluster);
  RunUntil(&f, [&] { return !cluster->heartbeats.empty(); });
  auto client = f.Client(1);
  ASSERT_TRUE(f.Write(client.get(), 0, {9, 0}, 0, "data").ok());
  ASSERT_TRUE(f.Run(f.server->Stop()).ok());
  f.disk[0].FlipBit(0, 1);
  const size_t registrations = cluster->registrations.size();
  ASSERT_TRUE(f.Restart().ok());
  RunUntil(&f, [&] { return cluster->registrations.size() > registrations; });
  EXPECT_EQ(ToErrno(f.Read(client.get(), 0, {9, 0}, 0, 4).status()), EIO);
  size_t before = cluster->heartbeats.size();
  RunUntil(&f, [&] { return cluster->heartbeats.size() > before + 1; });
  ASSERT_EQ(cluster->heartbeats.back().osts(0).problems_size(), 1);
  EXPECT_NE(cluster->heartbeats.back().osts(0).problems(0).find("file [0x7:0x1:0x0] object 9.0 block 0"),
            std::string::npos);
  EXPECT_EQ(cluster->heartbeats.back().osts(1).problems_size(), 0);
}

TEST(Heartbeats, ARefusalForGoodIsTold) {
  auto cluster = std::make_shared<FakeMgs>();
  cluster->refusal = ErrnoError(ENOSPC, "no room to store it just now");
  ServerFixture f(OftenBeating(), cluster);
  RunUntil(&f, [&] { return cluster->registrations.size() >= 3; });
  EXPECT_FALSE(f.server->refused().IsSet());
  cluster->refusal = ErrnoError(EEXIST, "OST index 1 belongs to another");
  RunUntil(&f, [&] { return f.server->refused().IsSet(); });
}

// A server that has been taken once goes on trying: its MGS may have been started with a wrong directory.
TEST(Heartbeats, WhoWasRegisteredIsNotRefusedForGood) {
  auto cluster = std::make_shared<FakeMgs>();
  ServerFixture f(OftenBeating(), cluster);
  RunUntil(&f, [&] { return cluster->heartbeats.size() >= 1; });
  cluster->refusal = ErrnoError(EINVAL, "belongs to another cluster");
  cluster->forget = true;
  RunUntil(&f, [&] { return cluster->registrations.size() >= 3; });
  EXPECT_FALSE(f.server->refused().IsSet());
}

}  // namespace
}  // namespace nacre
