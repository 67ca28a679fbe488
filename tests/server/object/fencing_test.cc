// Fences and the server's lease at one OST: what is refused, what is waited for.
#include "server/object/sessions.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "tests/server/object/server_fixture.h"

namespace nacre {
namespace {

using ost::ServiceLease;
using ost::Sessions;

constexpr ObjectId kFencedObject{9, 2};

proto::ObjectRequest FenceRequest(SessionId session) {
  proto::ObjectRequest fence;
  fence.mutable_fence()->set_session(session);
  return fence;
}

// A call whose client never sends the bytes that it wants to write: its process is frozen, its kernel
// answers.
class FrozenCall : public IncomingCall {
 public:
  FrozenCall(std::string body, uint64_t size) : body_(std::move(body)), size_(size) {}
  const std::string& body() const override { return body_; }
  CallMemory memory_kind() const override { return CallMemory::kGetSource; }
  uint64_t memory_size() const override { return size_; }
  Task<Status> Put(uint64_t, std::span<const std::span<const std::byte>>) override {
    co_return ErrnoError(EINVAL, "nothing is put");
  }
  Task<Status> Get(uint64_t, std::span<const std::span<std::byte>> buffers) override {
    asked = true;
    co_await thaw.Wait();
    for (std::span<std::byte> buffer : buffers) std::fill(buffer.begin(), buffer.end(), std::byte{'f'});
    co_return OkStatus();
  }
  Task<Status> Reply(std::string body) override {
    reply.emplace().ParseFromString(body);
    co_return OkStatus();
  }

  bool asked = false;
  OneShot<Unit> thaw;
  std::optional<proto::ObjectReply> reply;

 private:
  const std::string body_;
  const uint64_t size_;
};

// A transport whose listener's handler the test calls by itself.
class HandedOut : public Transport {
 public:
  explicit HandedOut(Transport* under) : under_(under) {}
  StatusOr<std::shared_ptr<MemoryRegion>> Register(std::byte* data, size_t size) override {
    return under_->Register(data, size);
  }
  StatusOr<std::shared_ptr<Peer>> Connect(const std::string& address) override {
    return under_->Connect(address);
  }
  StatusOr<std::unique_ptr<Listener>> Listen(const std::string&, CallHandler handle) override {
    class Nowhere : public Listener {
     public:
      std::string address() const override { return "nowhere"; }
    };
    handler = std::move(handle);
    return std::unique_ptr<Listener>(std::make_unique<Nowhere>());
  }
  CallHandler handler;

 private:
  Transport* const under_;
};

class FencingTest : public testing::Test {
 protected:
  FencingTest() {
    ObjectOptions options;
    options.pool_bytes = 8 << 20;
    ObjectEnvironment environment{fixture_.context.get_executor(), RealClock(), fixture_.random, transport_,
                                  nullptr};
    std::vector<OstDevices> osts{{0, &kv_, &disk_, "memory"}};
    auto started = fixture_.Run(ObjectServer::Start(environment, osts, options));
    EXPECT_TRUE(started.ok()) << started.status();
    server_ = *std::move(started);
  }
  ~FencingTest() override {
    server_.reset();
    fixture_.context.restart();
    fixture_.context.poll();
  }

  std::shared_ptr<FrozenCall> Start(proto::ObjectRequest request, uint64_t size) {
    auto call = std::make_shared<FrozenCall>(request.SerializeAsString(), size);
    Spawn(fixture_.context.get_executor(), transport_.handler(call));
    Turn();
    return call;
  }
  // Runs what can run.
  void Turn() {
    fixture_.context.restart();
    fixture_.context.run_for(20ms);
  }

  std::shared_ptr<FrozenCall> StartWrite(SessionId session, uint64_t sequence) {
    proto::ObjectRequest request = ServerFixture::WriteRequest(0, kFencedObject, 0, std::string(100000, 'f'));
    request.set_session(session);
    request.set_sequence(sequence);
    request.set_low_water(1);
    return Start(request, 100000);
  }

  ServerFixture fixture_;
  HandedOut transport_{fixture_.transport.get()};
  MemKv kv_;
  MemBlockStore disk_{4096};
  std::unique_ptr<ObjectServer> server_;
};

TEST_F(FencingTest, AFenceDoesNotWaitForAFrozenClientWhoseWriteIsRefusedAfterwards) {
  auto write = StartWrite(4, 1);
  ASSERT_TRUE(write->asked);
  for (int i = 0; i < 3; ++i) {
    auto fence = Start(FenceRequest(4), 0);
    ASSERT_TRUE(fence->reply.has_value()) << "the fence waits for the client";
    EXPECT_EQ(fence->reply->status().error(), 0u);
  }
  EXPECT_FALSE(write->reply.has_value());
  write->thaw.Set({});
  Turn();
  ASSERT_TRUE(write->reply.has_value());
  EXPECT_EQ(write->reply->status().error(), static_cast<uint32_t>(ESTALE));
  proto::ObjectRequest stat;
  *stat.mutable_stat()->mutable_object() = ToProto(kFencedObject);
  EXPECT_FALSE(Start(stat, 0)->reply->stat().exists()) << "the write of a fenced session was committed";
}

TEST_F(FencingTest, OthersGoOn) {
  auto write = StartWrite(5, 1);
  auto fence = Start(FenceRequest(4), 0);
  ASSERT_TRUE(fence->reply.has_value());
  write->thaw.Set({});
  Turn();
  ASSERT_TRUE(write->reply.has_value());
  EXPECT_EQ(write->reply->status().error(), 0u) << write->reply->status().message();
}

TEST_F(FencingTest, OneFenceOfManySessions) {
  proto::ObjectRequest request = FenceRequest(4);
  for (SessionId session : {5, 6}) request.mutable_fence()->add_more(session);
  EXPECT_EQ(Start(request, 0)->reply->status().error(), 0u);
  for (SessionId session : {4, 5, 6, 7}) {
    proto::ObjectRequest stat;
    stat.set_session(session);
    *stat.mutable_stat()->mutable_object() = ToProto(kFencedObject);
    EXPECT_EQ(Start(stat, 0)->reply->status().error() == 0, session == 7) << session;
  }
}

// --- the pieces ---

class ServedTest : public testing::Test {
 protected:
  ServedTest() { EXPECT_TRUE(sessions_.Load().ok()); }

  Sessions::Admission Admit(SessionId session, uint64_t sequence = 0) {
    return fixture_.Run(sessions_.Admit(session, sequence, 0));
  }

  ServerFixture fixture_;
  MemKv kv_;
  MemBlockStore disk_{4096};
  ost::Space space_{&disk_, "memory"};
  ServiceLease lease_;
  ost::ChunkCache chunks_{&kv_, ost::ChunkCache::kLeast};
  ost::Journal journal_{&kv_, &disk_, &space_, &chunks_};
  Sessions sessions_{&kv_, &journal_, &space_, &RealClock(), &lease_};
};

TEST_F(ServedTest, WithoutALeaseOnlyTheMdsIsServed) {
  EXPECT_EQ(ToErrno(Admit(1).status), ECONNRESET);
  EXPECT_TRUE(IsRetryable(Admit(1).status));
  EXPECT_TRUE(Admit(0).status.ok());
  lease_.Renew(RealClock().Now(), 1h);
  EXPECT_TRUE(Admit(1).status.ok());
  EXPECT_TRUE(Admit(0).status.ok());
}

TEST_F(ServedTest, WhatWasAdmittedUnderTheLeaseIsNotCommittedBehindIt) {
  lease_.Renew(RealClock().Now(), 1h);
  Sessions::Admission mine = Admit(1, 1), of_the_mds = Admit(0, 1);
  lease_.Renew(RealClock().Now() - 2h, 1h);
  EXPECT_EQ(ToErrno(mine.ticket.BeginCommit()), ECONNRESET);
  ASSERT_TRUE(of_the_mds.ticket.BeginCommit().ok());
  of_the_mds.ticket.EndCommit();
}

TEST_F(ServedTest, AFenceWaitsForACommitThatHasBegun) {
  lease_.Renew(RealClock().Now(), 1h);
  Sessions::Admission admission = Admit(1, 1);
  ASSERT_TRUE(admission.ticket.BeginCommit().ok());
  bool fenced = false;
  std::vector<SessionId> which(1, 1);
  Spawn(fixture_.context.get_executor(), sessions_.Fence(which),
        [&](Status status) { fenced = status.ok(); });
  fixture_.context.restart();
  fixture_.context.run_for(20ms);
  EXPECT_FALSE(fenced);
  admission.ticket.EndCommit();
  fixture_.context.restart();
  fixture_.context.run_for(20ms);
  EXPECT_TRUE(fenced);
  EXPECT_EQ(ToErrno(admission.ticket.BeginCommit()), ESTALE);
  EXPECT_EQ(sessions_.size(), 1u) << "its request is still there";
  admission.ticket = Sessions::Ticket();
  EXPECT_EQ(sessions_.size(), 0u);
}

}  // namespace
}  // namespace nacre
