// MdsFront refuses, hands on and withholds.
#include "rpc/mds_front.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <thread>

#include "rpc/inproc_channel.h"
#include "tests/rpc/test_mds.h"

namespace nacre {
namespace {

using testing::HasSubstr;

// Has the authority when it is told so. One waits for it at a time.
class TestAuthority : public Authority {
 public:
  bool MayServe() const override { return may; }
  Task<Status> AwaitAuthority() override {
    ++waits;
    OneShot<Status> end;
    {
      std::lock_guard lock(mutex);
      waiter = end;
    }
    waiting.Set({});
    co_return co_await end.Wait();
  }
  void End(Status status) {
    may = status.ok();
    std::lock_guard lock(mutex);
    waiter.Set(std::move(status));
  }

  std::atomic<bool> may{true};
  std::atomic<int> waits{0};
  OneShot<Unit> waiting;  // the first time
  std::mutex mutex;
  OneShot<Status> waiter;
};

class MdsFrontTest : public testing::Test {
 protected:
  ~MdsFrontTest() override {
    channel.reset();
    server.Stop();
    runtime.Stop();
  }

  void Serve() { front.Serve(mds, mds, mds, authority); }
  void Connect() { channel = *runtime.Run(connector->Connect({}, 5s)); }

  template <typename T>
  T Await(OneShot<T> value) {
    return runtime.Run([](OneShot<T> value) -> Task<T> { co_return co_await value.Wait(); }(value));
  }
  OneShot<StatusOr<proto::MetadataReply>> Begin(proto::MetadataRequest request) {
    OneShot<StatusOr<proto::MetadataReply>> end;
    Spawn(runtime.executor(), channel->Call(std::move(request)),
          [end](StatusOr<proto::MetadataReply> reply) { end.Set(std::move(reply)); });
    return end;
  }
  // A request whose answer is there when the authority has lapsed and is waited for.
  OneShot<StatusOr<proto::MetadataReply>> BeginAndLapse() {
    Serve();
    Connect();
    mds.waits = true;
    auto end = Begin(WhoIsThere());
    AwaitHandled(1);
    authority->may = false;
    mds.go.Set({});
    Await(authority->waiting);
    return end;
  }
  void AwaitHandled(int count) {
    while (mds.handled < count) std::this_thread::sleep_for(1ms);
  }

  std::string primary = "host:1";
  TestMds mds;
  std::shared_ptr<TestAuthority> authority = std::make_shared<TestAuthority>();
  Runtime runtime{2};
  MdsFront front{"mds-b", [this] { return primary; }};
  InprocServer server{runtime.executor(), front, front};
  std::shared_ptr<MetadataConnector> connector = server.NewConnector("test");
  std::shared_ptr<ClusterChannel> cluster = server.NewClusterChannel();
  std::shared_ptr<MetadataChannel> channel;
};

TEST_F(MdsFrontTest, RefusesEverythingBeforeItServesAndSaysWhoDoes) {
  Connect();
  auto connected = runtime.Run(channel->Call(ConnectRequest()));
  ASSERT_TRUE(connected.ok()) << connected.status();
  Status status = FromProto(connected->status());
  EXPECT_TRUE(IsRetryable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("mds-b"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("host:1"));
  EXPECT_TRUE(IsRetryable(FromProto(runtime.Run(cluster->RegisterOss({}))->status())));
  EXPECT_TRUE(IsRetryable(FromProto(runtime.Run(cluster->Heartbeat({}))->status())));
  EXPECT_TRUE(IsRetryable(FromProto(runtime.Run(cluster->ReportChain({}))->status())));
  EXPECT_TRUE(IsRetryable(FromProto(runtime.Run(cluster->Administer({}))->status())));
  primary.clear();
  status = runtime.Run(cluster->GetStatus()).status();
  EXPECT_TRUE(IsRetryable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("not known"));
  EXPECT_TRUE(IsRetryable(front.BeginBackup().status()));
  EXPECT_EQ(mds.handled, 0);
}

TEST_F(MdsFrontTest, ARequestOfASessionIsRefusedByTheEndOfItsStream) {
  Connect();
  Status status = runtime.Run(channel->Call(WhoIsThere())).status();
  EXPECT_TRUE(IsRetryable(status)) << status;
  EXPECT_EQ(mds.handled, 0);
}

TEST_F(MdsFrontTest, HandsOnWhatCameBeforeAndAfterItServes) {
  Connect();
  Serve();
  EXPECT_EQ(runtime.Run(channel->Call(ConnectRequest()))->connect().session(), 1u);
  EXPECT_EQ(runtime.Run(channel->Call(WhoIsThere()))->readlink().target(), "1");
  mds.epoch = 5;
  EXPECT_EQ(runtime.Run(cluster->RegisterOss({}))->mdt_epoch(), 5u);
  EXPECT_EQ(runtime.Run(cluster->Heartbeat({}))->mdt_epoch(), 5u);
  EXPECT_EQ(runtime.Run(cluster->ReportChain({}))->mdt_epoch(), 5u);
  EXPECT_EQ(runtime.Run(cluster->GetStatus())->inodes(), 1u);
  EXPECT_EQ(runtime.Run(cluster->Administer({}))->evicted(), "1");
  EXPECT_EQ(ToErrno(front.BeginBackup().status()), EBUSY);
  EXPECT_EQ(mds.handled, 8);
  EXPECT_EQ(authority->waits, 0) << "nobody waits for what is there";
  channel->Close();
  while (mds.disconnected == 0) std::this_thread::sleep_for(1ms);
}

TEST_F(MdsFrontTest, ARequestWaitsForTheAuthority) {
  authority->may = false;
  Serve();
  Connect();
  auto end = Begin(WhoIsThere());
  Await(authority->waiting);
  EXPECT_EQ(mds.handled, 0);
  authority->End(OkStatus());
  EXPECT_EQ(Await(end)->readlink().target(), "1");
}

TEST_F(MdsFrontTest, AnAnswerWaitsForTheAuthorityThatHasLapsedMeanwhile) {
  auto end = BeginAndLapse();
  EXPECT_FALSE(end.IsSet());
  authority->End(OkStatus());
  EXPECT_EQ(Await(end)->readlink().target(), "1");
}

TEST_F(MdsFrontTest, AnAnswerIsNeverGivenWhenTheAuthorityIsGone) {
  auto end = BeginAndLapse();
  authority->End(ErrnoError(ENOTCONN, "deposed"));
  Status status = Await(end).status();
  EXPECT_TRUE(IsRetryable(status)) << status;
  // The next ones, without a wait.
  Connect();
  auto connected = Begin(ConnectRequest());
  while (authority->waits < 2) std::this_thread::sleep_for(1ms);
  authority->End(ErrnoError(ENOTCONN, "deposed"));
  auto refused = Await(connected);
  ASSERT_TRUE(refused.ok()) << refused.status();
  EXPECT_TRUE(IsRetryable(FromProto(refused->status())));
  EXPECT_THAT(refused->status().message(), HasSubstr("deposed"));
  EXPECT_EQ(refused->connect().session(), 0u);
  EXPECT_TRUE(IsRetryable(front.BeginBackup().status()));
}

TEST_F(MdsFrontTest, AnAnswerToAnOssIsNotGivenEither) {
  Serve();
  mds.waits = true;
  OneShot<StatusOr<proto::HeartbeatReply>> end;
  Spawn(runtime.executor(), cluster->Heartbeat({}),
        [end](StatusOr<proto::HeartbeatReply> reply) { end.Set(std::move(reply)); });
  AwaitHandled(1);
  authority->may = false;
  mds.go.Set({});
  Await(authority->waiting);
  authority->End(ErrnoError(ENOTCONN, "deposed"));
  auto reply = Await(end);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_TRUE(IsRetryable(FromProto(reply->status())));
  EXPECT_EQ(reply->mdt_epoch(), 0u);
}

}  // namespace
}  // namespace nacre
