#include "tests/sim/network.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nacre::sim {
namespace {

using Result = StatusOr<std::string>;

// Answers with what it got from the caller's memory, or puts "pearl" there.
Task<void> Serve(std::shared_ptr<IncomingCall> call) {
  char bytes[5] = {'p', 'e', 'a', 'r', 'l'};
  Status moved;
  if (call->memory_kind() == CallMemory::kPutTarget) {
    std::span<const std::byte> piece = std::as_bytes(std::span(bytes));
    moved = co_await call->Put(0, std::span(&piece, 1));
  } else {
    std::span<std::byte> piece = std::as_writable_bytes(std::span(bytes));
    moved = co_await call->Get(0, std::span(&piece, 1));
  }
  std::string reply = call->body() + ":" + (moved.ok() ? std::string(bytes, 5) : std::string("failed"));
  (void)co_await call->Reply(std::move(reply));
}

class NetworkTest : public testing::Test {
 protected:
  NetworkTest() {
    listener_ = server_transport_->Listen("sim:server", Serve).value();
    server_->Own(std::move(listener_));
    region_ = client_transport_->Register(memory_, sizeof memory_).value();
    peer_ = client_transport_->Connect("sim:server").value();
  }

  void Call(std::string body, CallMemory kind, Duration timeout, std::vector<Result>& results) {
    CallRequest request;
    request.body = std::move(body);
    request.kind = kind;
    request.memory.push_back({region_, 0, 2});
    request.memory.push_back({region_, 2, 3});
    Spawn(client_->executor(),
          [](std::shared_ptr<Peer> peer, CallRequest request, Duration timeout,
             std::vector<Result>& results) -> Task<void> {
            results.push_back(co_await peer->Call(std::move(request), timeout));
          }(peer_, std::move(request), timeout, results));
  }

  World world_{4};
  Network network_{world_};
  Process* server_ = world_.Start(0, "server");
  Process* client_ = world_.Start(1, "client");
  std::unique_ptr<Transport> server_transport_ = NewTransport(network_, server_);
  std::unique_ptr<Transport> client_transport_ = NewTransport(network_, client_);
  std::unique_ptr<Listener> listener_;
  std::byte memory_[5] = {};
  std::shared_ptr<MemoryRegion> region_;
  std::shared_ptr<Peer> peer_;
};

TEST_F(NetworkTest, PutsAndGets) {
  std::vector<Result> results;
  Call("read", CallMemory::kPutTarget, 1s, results);
  ASSERT_TRUE(world_.RunUntil([&] { return results.size() == 1; }, 1s));
  EXPECT_EQ(results[0].value(), "read:pearl");
  EXPECT_EQ(std::string(reinterpret_cast<char*>(memory_), 5), "pearl");
  memory_[0] = std::byte{'P'};
  Call("write", CallMemory::kGetSource, 1s, results);
  ASSERT_TRUE(world_.RunUntil([&] { return results.size() == 2; }, 1s));
  EXPECT_EQ(results[1].value(), "write:Pearl");
}

TEST_F(NetworkTest, WrongKindOfMemoryIsRefused) {
  std::vector<Result> results;
  Call("none", CallMemory::kNone, 1s, results);
  ASSERT_TRUE(world_.RunUntil([&] { return results.size() == 1; }, 1s));
  EXPECT_EQ(results[0].value(), "none:failed");
}

TEST_F(NetworkTest, CutHoldsTheCallUntilItsTimeoutAndThenLeavesTheMemoryAlone) {
  std::vector<Result> results;
  Call("warm", CallMemory::kGetSource, 1s, results);
  world_.RunFor(1s);
  network_.Cut(1, 0);
  Call("late", CallMemory::kPutTarget, 500ms, results);
  ASSERT_TRUE(world_.RunUntil([&] { return results.size() == 2; }, 1s));
  EXPECT_EQ(ToErrno(results[1].status()), ETIMEDOUT);
  network_.Heal();
  world_.RunFor(10s);
  EXPECT_EQ(memory_[0], std::byte{0});
}

TEST_F(NetworkTest, DeadServerEndsTheCallAndANewOneIsFound) {
  std::vector<Result> results;
  network_.faults().max_delay = 100ms;
  Call("lost", CallMemory::kPutTarget, 1h, results);
  world_.RunFor(20ms);
  world_.Kill(server_);
  ASSERT_TRUE(world_.RunUntil([&] { return results.size() == 1; }, 10s));
  EXPECT_TRUE(IsRetryable(results[0].status())) << results[0].status();
  Call("refused", CallMemory::kPutTarget, 1h, results);
  ASSERT_TRUE(world_.RunUntil([&] { return results.size() == 2; }, 10s));
  EXPECT_TRUE(IsRetryable(results[1].status())) << results[1].status();
  Process* next = world_.Start(0, "server");
  auto transport = NewTransport(network_, next);
  next->Own(std::shared_ptr<Listener>(transport->Listen("sim:server", Serve).value()));
  Call("again", CallMemory::kPutTarget, 1h, results);
  ASSERT_TRUE(world_.RunUntil([&] { return results.size() == 3; }, 10s));
  EXPECT_EQ(results[2].value(), "again:pearl");
}

TEST_F(NetworkTest, KilledClientTakesItsMemoryWithIt) {
  std::vector<Result> results;
  network_.faults().max_delay = 100ms;
  Call("gone", CallMemory::kPutTarget, 1h, results);
  world_.RunFor(60ms);
  world_.Kill(client_);
  world_.RunFor(10s);
  EXPECT_TRUE(results.empty());
  EXPECT_EQ(memory_[0], std::byte{0});
}

TEST_F(NetworkTest, EveryCallEndsWhateverBreaks) {
  network_.faults().break_one_in = 30;
  std::vector<Result> results;
  for (int i = 0; i < 200; ++i) {
    Call("x", i % 2 != 0 ? CallMemory::kPutTarget : CallMemory::kGetSource, 5s, results);
    world_.RunFor(10ms);
  }
  EXPECT_TRUE(world_.RunUntil([&] { return results.size() == 200; }, 10s));
  EXPECT_GT(std::count_if(results.begin(), results.end(), [](auto& r) { return r.ok(); }), 40);
}

// Answers a lookup with its name, and tells of each stream that ended.
class Echo : public MetadataHandler {
 public:
  Task<proto::MetadataReply> Handle(std::shared_ptr<MetadataPeer> peer,
                                    proto::MetadataRequest request) override {
    proto::MetadataReply reply;
    reply.mutable_readlink()->set_target(request.lookup().name());
    proto::Push push;
    push.mutable_evicted()->set_reason(request.lookup().name());
    peer->Send(std::move(push));
    co_return reply;
  }
  void Disconnected(std::shared_ptr<MetadataPeer>) override { ++disconnected; }
  int disconnected = 0;
};

TEST_F(NetworkTest, MetadataStreamIsInOrderAndItsLossIsTold) {
  Echo echo;
  ASSERT_TRUE(network_.Add("sim:mds", Service{server_, nullptr, &echo, nullptr}).ok());
  std::vector<std::string> pushes, replies;
  int lost = 0;
  std::shared_ptr<MetadataChannel> channel;
  Spawn(client_->executor(),
        [](Network& network, Process* client, std::shared_ptr<MetadataChannel>& channel,
           std::vector<std::string>& pushes, int& lost) -> Task<void> {
          MetadataChannelEvents events;
          events.on_push = [&](proto::Push push) { pushes.push_back(push.evicted().reason()); };
          events.on_lost = [&](Status) { ++lost; };
          auto connector = NewMetadataConnector(network, client, "sim:mds");
          channel = (co_await connector->Connect(std::move(events), 1s)).value();
        }(network_, client_, channel, pushes, lost));
  ASSERT_TRUE(world_.RunUntil([&] { return channel != nullptr; }, 1s));
  for (int i = 0; i < 20; ++i) {
    proto::MetadataRequest request;
    request.mutable_lookup()->set_name(std::to_string(i));
    Spawn(client_->executor(),
          [](std::shared_ptr<MetadataChannel> channel, proto::MetadataRequest request,
             std::vector<std::string>& replies) -> Task<void> {
            replies.push_back((co_await channel->Call(std::move(request))).value().readlink().target());
          }(channel, std::move(request), replies));
  }
  ASSERT_TRUE(world_.RunUntil([&] { return replies.size() == 20 && pushes.size() == 20; }, 10s));
  // A push goes out before its reply, and the stream keeps its order.
  std::vector<std::string> sorted = replies;
  EXPECT_THAT(pushes, testing::UnorderedElementsAreArray(sorted));
  network_.Break(0, 1);
  EXPECT_TRUE(world_.RunUntil([&] { return lost == 1 && echo.disconnected == 1; }, 10s));
  channel->Close();
  world_.RunFor(10s);
  EXPECT_EQ(lost, 1);
}

}  // namespace
}  // namespace nacre::sim
