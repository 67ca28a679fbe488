// Registrations: who is let in, who is refused and why, what a restart of the MGS finds again.
#include "server/cluster/ost_registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <cerrno>
#include <optional>

#include "rpc/convert.h"
#include "server/kv/mem_kv.h"
#include "tests/common/await.h"
#include "transport/inproc/inproc_transport.h"

namespace nacre::cluster {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

MATCHER_P2(IsRefused, error, text, "") {
  *result_listener << "error " << arg.status().error() << ": " << arg.status().message();
  return arg.status().error() == static_cast<uint32_t>(error) &&
         arg.status().message().find(text) != std::string::npos;
}
MATCHER(IsTaken, "") {
  *result_listener << arg.status().message();
  return arg.status().error() == 0;
}

class SteppedClock : public Clock {
 public:
  Duration Now() override { return now; }
  WallTime Wall() override { return RealClock().Wall(); }
  std::unique_ptr<TimerHandle> After(const Executor& executor, Duration delay,
                                     absl::AnyInvocable<void()> function) override {
    return RealClock().After(executor, delay, std::move(function));
  }
  Duration now{1s};
};

// An OSS of one OST, as it registers.
proto::RegisterOssRequest Oss(OstIndex index, const std::string& uuid,
                              const std::string& address = "inproc:oss") {
  proto::RegisterOssRequest request;
  request.set_address(address);
  request.set_instance(7);
  proto::OstInfo* info = request.add_osts();
  info->set_index(index);
  info->set_uuid(uuid);
  info->set_total_bytes(1 << 20);
  return request;
}

class OstRegistryTest : public testing::Test {
 protected:
  OstRegistryTest() { Start(); }

  void Start() {
    registry.emplace(kv, clock, *transport, RegistryOptions{"cluster-1", 1s});
    loaded = registry->Load(1);
  }

  proto::RegisterOssReply Register(const proto::RegisterOssRequest& request) {
    std::optional<proto::RegisterOssReply> reply;
    Spawn(context.get_executor(), registry->Register(request),
          [&reply](proto::RegisterOssReply value) { reply = std::move(value); });
    context.restart();
    while (!reply.has_value() && context.run_one() > 0) {
    }
    return *std::move(reply);
  }

  proto::HeartbeatReply Beat(const proto::RegisterOssRequest& oss) {
    proto::HeartbeatRequest request;
    request.set_address(oss.address());
    request.set_instance(oss.instance());
    *request.mutable_osts() = oss.osts();
    return registry->Heartbeat(request);
  }

  asio::io_context context;
  SteppedClock clock;
  MemKv kv;
  std::unique_ptr<Transport> transport =
      MakeInprocTransport(MakeInprocNetwork(), context.get_executor(), RealClock());
  std::optional<OstRegistry> registry;
  Status loaded;
};

TEST_F(OstRegistryTest, LetsAnOstInAndKeepsItsIndexForEver) {
  EXPECT_THAT(registry->Known(), IsEmpty());
  auto reply = Register(Oss(3, "uuid-3"));
  ASSERT_THAT(reply, IsTaken());
  EXPECT_EQ(reply.cluster_uuid(), "cluster-1");
  EXPECT_EQ(reply.heartbeat_ms(), 1000u);
  EXPECT_TRUE(registry->IsUp(3));
  Start();  // the MGS again
  ASSERT_TRUE(loaded.ok()) << loaded;
  EXPECT_THAT(registry->Known(), ElementsAre(3));
  EXPECT_FALSE(registry->IsUp(3));
  EXPECT_THAT(Register(Oss(3, "uuid-4")), IsRefused(EEXIST, "belongs to uuid-3 for ever"));
  EXPECT_THAT(Register(Oss(4, "uuid-3")), IsRefused(EEXIST, "has index 3, it cannot come back as 4"));
  EXPECT_THAT(Register(Oss(3, "uuid-3")), IsTaken());
}

TEST_F(OstRegistryTest, OneThatSpeaksAnotherVersionIsRefused) {
  auto oss = Oss(3, "uuid-3");
  EXPECT_EQ(Register(oss).version(), 1u) << "of before there was a number";
  oss.set_version(3);
  oss.set_oldest_version(2);
  const char* words = "OSS inproc:oss speaks versions 2 to 3 of the protocol, the MDS version 1";
  EXPECT_THAT(Register(oss), IsRefused(EPROTO, words));
  oss.set_oldest_version(1);
  auto reply = Register(oss);
  EXPECT_THAT(reply, IsTaken());
  EXPECT_EQ(reply.version(), 1u);
}

TEST_F(OstRegistryTest, ADrainedOneIsNotChosen) {
  EXPECT_THAT(Register(Oss(3, "uuid-3")), IsTaken());
  EXPECT_THAT(Register(Oss(4, "uuid-4", "inproc:other")), IsTaken());
  EXPECT_EQ(Await(registry->SetUse(5, OstUse::kDraining)).code(), ErrnoError(ENODEV, "").code());
  const auto before = registry->Usable();
  EXPECT_EQ(before->size(), 2u);
  ASSERT_TRUE(Await(registry->SetUse(3, OstUse::kDraining)).ok());
  EXPECT_FALSE(registry->Usable()->Includes(3));
  EXPECT_FALSE(registry->TakesObjects(3));
  EXPECT_TRUE(registry->MayYetPlaceOn(3)) << "somebody has chosen from what there was before";
  EXPECT_THAT(Register(Oss(3, "uuid-3")), IsTaken());  // its server is started again
  Start();
  ASSERT_TRUE(loaded.ok()) << loaded;
  EXPECT_EQ(registry->UseOf(3), OstUse::kDraining);
  EXPECT_FALSE(registry->MayYetPlaceOn(3));
  ASSERT_TRUE(Await(registry->SetUse(3, OstUse::kActive)).ok());
  EXPECT_TRUE(registry->TakesObjects(3));
}

TEST_F(OstRegistryTest, ARemovedOneIsNotKnownAndItsIndexIsNotUsedAgain) {
  auto both = Oss(3, "uuid-3");
  *both.add_osts() = Oss(4, "uuid-4").osts(0);
  EXPECT_THAT(Register(both), IsTaken());
  ASSERT_TRUE(Await(registry->Remove(3, OstUse::kLost)).ok());
  for (int start = 0; start < 2; ++start) {
    EXPECT_THAT(registry->Known(), ElementsAre(4));
    EXPECT_EQ(registry->UseOf(3), OstUse::kLost);
    ASSERT_EQ(registry->Map().removed_size(), 1);
    EXPECT_TRUE(registry->Map().removed(0).lost());
    EXPECT_EQ(registry->Stub(3).status().code(), ErrnoError(ENODEV, "").code());
    EXPECT_TRUE(Await(registry->FenceOrOutlive(3, 77))) << "nobody has to be told";
    // Its server goes on, with what else it has.
    auto reply = Register(both);
    EXPECT_THAT(reply, IsTaken());
    EXPECT_THAT(reply.removed_osts(), ElementsAre(3));
    auto beat = Beat(both);
    EXPECT_THAT(beat, IsTaken());
    EXPECT_THAT(beat.removed_osts(), ElementsAre(3));
    EXPECT_THAT(Register(Oss(3, "uuid-3")), IsTaken()) << "also with nothing else";
    EXPECT_THAT(Register(Oss(3, "uuid-5")), IsRefused(EEXIST, "has been removed"));
    EXPECT_THAT(Register(Oss(5, "uuid-3")), IsRefused(EEXIST, "has been removed as OST 3"));
    Start();
    ASSERT_TRUE(loaded.ok()) << loaded;
  }
}

TEST_F(OstRegistryTest, EveryAnswerSaysTheEpoch) {
  EXPECT_EQ(Register(Oss(3, "uuid-3")).mdt_epoch(), 0u);
  registry.emplace(kv, clock, *transport, RegistryOptions{.cluster_uuid = "cluster-1", .epoch = 7});
  ASSERT_TRUE(registry->Load(1).ok());
  EXPECT_EQ(Beat(Oss(3, "uuid-3")).mdt_epoch(), 7u);  // also that which refuses
  EXPECT_EQ(Register(Oss(3, "uuid-3")).mdt_epoch(), 7u);
  EXPECT_EQ(Await(registry->ReportChain({})).mdt_epoch(), 7u);
}

TEST_F(OstRegistryTest, RefusesWhatIsWrongWithTheRequest) {
  auto stranger = Oss(0, "uuid-0");
  stranger.set_cluster_uuid("cluster-2");
  EXPECT_THAT(Register(stranger),
              IsRefused(EINVAL, "belongs to cluster cluster-2, this is cluster cluster-1"));
  EXPECT_THAT(Register(Oss(0, "uuid-0", "")), IsRefused(EINVAL, "without an address"));
  EXPECT_THAT(Register(Oss(0, "")), IsRefused(EINVAL, "without a uuid"));
  EXPECT_THAT(Register(Oss(65536, "uuid-0")), IsRefused(EINVAL, "the highest is 65535"));
  auto empty = Oss(0, "uuid-0");
  empty.clear_osts();
  EXPECT_THAT(Register(empty), IsRefused(EINVAL, "without an OST"));
  EXPECT_THAT(registry->Known(), IsEmpty());
}

// Two OSTs of one request are held against each other as well as against those that are known.
TEST_F(OstRegistryTest, RefusesARequestThatContradictsItself) {
  auto twice = Oss(1, "uuid-1");
  *twice.add_osts() = Oss(1, "uuid-2").osts(0);
  EXPECT_THAT(Register(twice), IsRefused(EEXIST, "OST index 1"));
  auto moved = Oss(1, "uuid-1");
  *moved.add_osts() = Oss(2, "uuid-1").osts(0);
  EXPECT_THAT(Register(moved), IsRefused(EEXIST, "uuid-1"));
  EXPECT_THAT(registry->Known(), IsEmpty());
}

// An address that nobody can connect to must not be stored: the MGS would not start again.
TEST_F(OstRegistryTest, RefusesAnAddressThatIsNone) {
  EXPECT_THAT(Register(Oss(0, "uuid-0", "nowhere")), IsRefused(EINVAL, "nowhere"));
  EXPECT_THAT(registry->Known(), IsEmpty());
  registry->Close();
  Start();
  EXPECT_TRUE(loaded.ok()) << loaded;
  EXPECT_THAT(registry->Known(), IsEmpty());
}

// Its directory or disk is gone: the OSS answers, but nobody should rely on it.
TEST_F(OstRegistryTest, AnOstThatIsFailingIsDownUntilItIsWell) {
  auto oss = Oss(0, "uuid-0");
  ASSERT_THAT(Register(oss), IsTaken());
  const uint64_t version = registry->version();
  auto failing = oss;
  failing.mutable_osts(0)->set_failing(true);
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(Beat(failing), IsTaken());
    EXPECT_FALSE(registry->IsUp(0));
  }
  EXPECT_EQ(registry->version(), version + 1);
  EXPECT_TRUE(registry->Map().osts(0).info().failing());
  EXPECT_THAT(Register(failing), IsTaken());  // the MGS was started again meanwhile, for example
  EXPECT_FALSE(registry->IsUp(0));
  EXPECT_THAT(Beat(oss), IsRefused(ENOENT, "register again"));
  EXPECT_THAT(Register(oss), IsTaken());
  EXPECT_TRUE(registry->IsUp(0));
}

TEST_F(OstRegistryTest, WhoIsSilentGoesDownAndRegistersAgain) {
  auto oss = Oss(0, "uuid-0");
  EXPECT_THAT(Beat(oss), IsRefused(ENOENT, "register again"));
  ASSERT_THAT(Register(oss), IsTaken());
  clock.now += 5s;
  registry->CheckHeartbeats();
  EXPECT_TRUE(registry->IsUp(0));
  EXPECT_THAT(Beat(oss), IsTaken());
  clock.now += 5001ms;
  registry->CheckHeartbeats();
  EXPECT_FALSE(registry->IsUp(0));
  EXPECT_THAT(Beat(oss), IsRefused(ENOENT, "register again"));
  ASSERT_THAT(Register(oss), IsTaken());
  auto restarted = oss;
  restarted.set_instance(8);
  EXPECT_THAT(Beat(restarted), IsRefused(ENOENT, "register again"));
  EXPECT_EQ(registry->Map().version(), 4u);
}

// It is not told of evictions, and nobody waits for it: by its lease it could serve for ten
// seconds.
TEST_F(OstRegistryTest, OneWhoseProcessHasEndedIsDownAndServesNobody) {
  auto oss = Oss(0, "uuid-0");
  ASSERT_THAT(Register(oss), IsTaken());
  proto::HeartbeatRequest end;
  end.set_ended(true);
  EXPECT_THAT(registry->Heartbeat(end), IsTaken()) << "of no process";
  end.set_instance(oss.instance() + 2);
  EXPECT_THAT(registry->Heartbeat(end), IsTaken()) << "of one that is not known";
  EXPECT_TRUE(registry->IsUp(0));
  end.set_instance(oss.instance());
  EXPECT_THAT(registry->Heartbeat(end), IsTaken());
  EXPECT_FALSE(registry->IsUp(0));
  EXPECT_FALSE(Await(registry->FenceOrOutlive(0, 77))) << "its time is over";
  EXPECT_THAT(Beat(oss), IsRefused(ENOENT, "register again"));
  auto next = oss;
  next.set_instance(oss.instance() + 1);
  ASSERT_THAT(Register(next), IsTaken());
  EXPECT_THAT(registry->Heartbeat(end), IsTaken()) << "told late";
  EXPECT_TRUE(registry->IsUp(0));
}

// Its registration waits, for fences or for the store, and must not bring it up afterwards.
TEST_F(OstRegistryTest, OneWhoseProcessEndsWhileItRegistersDoesNotComeUp) {
  OneShot<Unit> admitted;
  registry->SetAdmit([admitted](OstIndex) -> Task<Status> {
    co_await admitted.Wait();
    co_return OkStatus();
  });
  auto oss = Oss(0, "uuid-0");
  std::optional<proto::RegisterOssReply> reply;
  Spawn(context.get_executor(), registry->Register(oss),
        [&reply](proto::RegisterOssReply value) { reply = std::move(value); });
  context.restart();
  context.run_for(100ms);
  ASSERT_FALSE(reply);
  proto::HeartbeatRequest end;
  end.set_ended(true);
  end.set_instance(oss.instance());
  EXPECT_THAT(registry->Heartbeat(end), IsTaken());
  admitted.Set({});
  context.restart();
  context.run_for(100ms);
  ASSERT_TRUE(reply);
  EXPECT_NE(reply->status().error(), 0u);
  EXPECT_THAT(reply->status().message(), testing::HasSubstr("has ended"));
  EXPECT_FALSE(registry->IsUp(0));
  auto next = oss;
  next.set_instance(oss.instance() + 1);
  ASSERT_THAT(Register(next), IsTaken());
  EXPECT_TRUE(registry->IsUp(0));
}

TEST_F(OstRegistryTest, AMemberWhoseEndWasToldFirstDoesNotEnterItsChain) {
  auto oss = Oss(0, "uuid-0");
  oss.mutable_osts(0)->set_copies(2);
  proto::HeartbeatRequest end;
  end.set_ended(true);
  end.set_instance(oss.instance());
  EXPECT_THAT(registry->Heartbeat(end), IsTaken());
  EXPECT_NE(Register(oss).status().error(), 0u);
  EXPECT_FALSE(registry->IsUp(0));
}

TEST_F(OstRegistryTest, WithoutAnyUpAllKnownOnesAreUsable) {
  EXPECT_TRUE(registry->Usable()->empty());
  EXPECT_EQ(registry->Stub(0).status().code(), absl::StatusCode::kNotFound);
  ASSERT_THAT(Register(Oss(0, "uuid-0")), IsTaken());
  ASSERT_THAT(Register(Oss(1, "uuid-1")), IsTaken());
  clock.now += 3s;
  EXPECT_THAT(Beat(Oss(1, "uuid-1")), IsTaken());
  clock.now += 3s;
  registry->CheckHeartbeats();
  ASSERT_EQ(registry->Usable()->size(), 1u);
  EXPECT_EQ((*registry->Usable())[0].index, 1u);
  clock.now += 10s;
  registry->CheckHeartbeats();
  EXPECT_EQ(registry->Usable()->size(), 2u);
}

TEST_F(OstRegistryTest, DamagedRecordsAreReported) {
  KvBatch batch;
  batch.Put(OstKey(0), "short");
  ASSERT_TRUE(Await(kv.Commit(std::move(batch))).ok());
  Start();
  EXPECT_TRUE(absl::IsDataLoss(loaded)) << loaded;
}

}  // namespace
}  // namespace nacre::cluster
