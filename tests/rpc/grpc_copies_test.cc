// The messages between MDSes over gRPC.
#include "rpc/grpc_copies.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <thread>

#include "common/runtime.h"
#include "rpc/grpc_server.h"

namespace nacre {
namespace {

// Says what it is told, with as much as it is told; one beyond the epoch; or nothing.
class TestCopy : public CopyHandler {
 public:
  Task<proto::CopyReply> Exchange(proto::CopyRequest request) override {
    on_executor = ContextOf(co_await CurrentExecutor()) != nullptr;
    OneShot<Unit> let = go;
    if (request.has_sync()) co_await let.Wait();
    proto::CopyReply reply;
    reply.set_epoch(request.epoch() + 1);
    size_t bytes = 0;
    for (const proto::StoreChange& change : request.apply().changes()) bytes += change.value().size();
    reply.mutable_position()->set_sequence(bytes);
    reply.mutable_status()->set_message(std::string(request.apply().position().sequence(), 'x'));
    co_return reply;
  }
  bool on_executor = false;
  OneShot<Unit> go;
};

class GrpcCopiesTest : public testing::Test {
 protected:
  GrpcCopiesTest() {
    Start();
    address = server->addresses()[0];
    // A name, as it is resolved anew when nobody answers.
    channel = *connector->Open("localhost" + address.substr(address.rfind(':')));
  }
  ~GrpcCopiesTest() override {
    copy.go.Set({});
    server->Stop();
    runtime.Stop();
  }
  void Start() {
    GrpcServices services;
    services.copies = &copy;
    auto started = GrpcServer::Start(runtime.executor(), services, {address});
    ASSERT_TRUE(started.ok()) << started.status();
    server = *std::move(started);
  }
  StatusOr<proto::CopyReply> Tell(proto::CopyRequest request, Duration timeout = 5s) {
    return runtime.Run(channel->Exchange(std::move(request), timeout));
  }

  std::string address = "127.0.0.1:0";
  TestCopy copy;
  Runtime runtime{1};
  std::unique_ptr<GrpcServer> server;
  std::shared_ptr<CopyConnector> connector = NewGrpcCopyConnector();
  std::shared_ptr<CopyChannel> channel;
};

TEST_F(GrpcCopiesTest, BringsRequestsAndAnswersAlsoLargeOnes) {
  proto::CopyRequest request;
  request.set_epoch(7);
  request.mutable_beacon()->set_promise_ms(2000);
  auto reply = Tell(request);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->epoch(), 8u);
  EXPECT_TRUE(copy.on_executor);
  request.mutable_apply()->add_changes()->set_value(std::string(15 << 20, 'v'));
  request.mutable_apply()->mutable_position()->set_sequence(15 << 20);
  reply = Tell(request);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->position().sequence(), 15u << 20);
  EXPECT_EQ(reply->status().message().size(), 15u << 20);
  request.mutable_apply()->add_changes()->set_value(std::string(20 << 20, 'v'));
  EXPECT_EQ(ToErrno(Tell(request).status()), EMSGSIZE);
}

TEST_F(GrpcCopiesTest, EndsAtTheTimeout) {
  proto::CopyRequest request;
  request.mutable_sync();
  EXPECT_TRUE(absl::IsDeadlineExceeded(Tell(request, 50ms).status()));
}

TEST_F(GrpcCopiesTest, ACallThatLastsIsNotEndedForThePingsMeanwhile) {
  proto::CopyRequest request;
  request.mutable_sync();
  EXPECT_TRUE(absl::IsDeadlineExceeded(Tell(request, 4500ms).status()));
}

TEST_F(GrpcCopiesTest, IsSoonThereAgainWhenTheOtherOneIs) {
  proto::CopyRequest request;
  request.mutable_ask();
  ASSERT_TRUE(Tell(request).ok());
  server->Stop();
  for (const Duration end = RealClock().Now() + 4s; RealClock().Now() < end;) {
    EXPECT_TRUE(absl::IsUnavailable(Tell(request, 1s).status()));
    std::this_thread::sleep_for(100ms);
  }
  Start();
  const Duration begin = RealClock().Now();
  while (!Tell(request, 1s).ok()) std::this_thread::sleep_for(10ms);
  EXPECT_LT(RealClock().Now() - begin, 700ms);  // half a second, and a slow machine
}

TEST_F(GrpcCopiesTest, NobodyNeedsToBeThereWhenAChannelIsOpened) {
  server->Stop();
  auto other = *connector->Open(address);
  EXPECT_TRUE(absl::IsUnavailable(runtime.Run(other->Exchange({}, 1s)).status()));
  EXPECT_EQ(ToErrno(connector->Open("nonsense").status()), EINVAL);
}

}  // namespace
}  // namespace nacre
