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
  void WhenKept(absl::AnyInvocable<void(bool)> done) override {
    {
      std::lock_guard lock(mutex);
      if (pending) return withheld.push_back(std::move(done));
    }
    done(true);
  }
  // Changes are under way from now on.
  void Change() {
    std::lock_guard lock(mutex);
    pending = true;
  }
  void Keep(bool kept = true) {
    std::vector<absl::AnyInvocable<void(bool)>> released;
    {
      std::lock_guard lock(mutex);
      pending = false;
      released.swap(withheld);
    }
    for (auto& done : released) done(kept);
  }
  size_t waiting_outputs() {
    std::lock_guard lock(mutex);
    return withheld.size();
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
  bool pending = false;
  std::vector<absl::AnyInvocable<void(bool)>> withheld;
};

// Keeps the peer of the last request, as a session does.
class MdsWithPeer : public TestMds {
 public:
  Task<proto::MetadataReply> Handle(std::shared_ptr<MetadataPeer> from,
                                    proto::MetadataRequest request) override {
    {
      std::lock_guard lock(mutex);
      same = peer == from;
      peer = from;
    }
    return TestMds::Handle(std::move(from), std::move(request));
  }

  std::mutex mutex;
  std::shared_ptr<MetadataPeer> peer;
  bool same = false;  // the request before came by it, too
};

class MdsFrontTest : public testing::Test {
 protected:
  ~MdsFrontTest() override {
    channel.reset();
    mds.peer.reset();
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
  MdsWithPeer mds;
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

TEST_F(MdsFrontTest, AnAnswerWaitsUntilWhatWasChangedBeforeItIsKept) {
  Serve();
  Connect();
  authority->Change();
  auto end = Begin(WhoIsThere());
  while (authority->waiting_outputs() < 1) std::this_thread::sleep_for(1ms);
  EXPECT_FALSE(end.IsSet());
  authority->Keep();
  EXPECT_EQ(Await(end)->readlink().target(), "1");
}

TEST_F(MdsFrontTest, AnAnswerToAnOssWaitsForThatToo) {
  Serve();
  authority->Change();
  OneShot<StatusOr<proto::HeartbeatReply>> end;
  Spawn(runtime.executor(), cluster->Heartbeat({}),
        [end](StatusOr<proto::HeartbeatReply> reply) { end.Set(std::move(reply)); });
  while (authority->waiting_outputs() < 1) std::this_thread::sleep_for(1ms);
  EXPECT_FALSE(end.IsSet());
  authority->Keep();
  EXPECT_TRUE(Await(end).ok());
}

TEST_F(MdsFrontTest, WhatIsNeverKeptIsNeverAnswered) {
  Serve();
  Connect();
  authority->Change();
  auto end = Begin(WhoIsThere());
  while (authority->waiting_outputs() < 1) std::this_thread::sleep_for(1ms);
  authority->Keep(false);
  const Status status = Await(end).status();
  EXPECT_TRUE(IsRetryable(status)) << status;
}

TEST_F(MdsFrontTest, PushesWaitAndLeaveInTheirOrder) {
  std::mutex mutex;
  std::vector<uint64_t> pushed;
  std::atomic<bool> lost{false};
  MetadataChannelEvents events;
  events.on_push = [&](proto::Push push) {
    std::lock_guard lock(mutex);
    pushed.push_back(push.map().version());
  };
  events.on_lost = [&](Status) { lost = true; };
  auto arrived = [&] {
    std::lock_guard lock(mutex);
    return pushed;
  };
  Serve();
  channel = *runtime.Run(connector->Connect(std::move(events), 5s));
  ASSERT_TRUE(runtime.Run(channel->Call(WhoIsThere())).ok());
  ASSERT_TRUE(runtime.Run(channel->Call(WhoIsThere())).ok());
  EXPECT_TRUE(mds.same) << "the MDS tells peers apart by who they are";
  auto push = [&](uint64_t version) {
    proto::Push push;
    push.mutable_map()->set_version(version);
    mds.peer->Send(std::move(push));
  };
  push(1);
  while (arrived().size() < 1) std::this_thread::sleep_for(1ms);
  authority->Change();
  push(2);
  push(3);
  mds.peer->Close();
  EXPECT_EQ(authority->waiting_outputs(), 3u);
  EXPECT_EQ(arrived().size(), 1u);
  EXPECT_FALSE(lost);
  authority->Keep();
  while (!lost) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(arrived(), (std::vector<uint64_t>{1, 2, 3}));
}

}  // namespace
}  // namespace nacre
