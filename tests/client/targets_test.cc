#include "client/targets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <cerrno>
#include <map>
#include <optional>

#include "transport/inproc/inproc_transport.h"

namespace nacre::client {
namespace {

proto::ClusterMap MapOf(OstIndex index, const std::string& address) {
  proto::ClusterMap map;
  map.add_osts()->mutable_info()->set_index(index);
  map.mutable_osts(0)->set_address(address);
  return map;
}

// An OSS may serve at an address that this client's transports do not understand.
TEST(Targets, AnAddressThatIsNoneFailsTheCallsAndNothingElse) {
  asio::io_context context;
  auto transport = MakeInprocTransport(MakeInprocNetwork(), context.get_executor(), RealClock());
  RetryPolicy policy;
  policy.hard = false;
  Targets targets(*transport, RealClock(), policy, [](OstIndex, uint64_t) {});
  targets.Reset(1, 1);
  targets.SetMap(MapOf(0, "nowhere"));
  uint64_t epoch = 1;
  auto call = [&] {
    proto::ObjectRequest request;
    request.mutable_sync();
    std::vector<MemorySpan> none;
    std::optional<Status> ended;
    Spawn(context.get_executor(), targets.Call(epoch, std::move(request), CallMemory::kNone, std::move(none)),
          [&ended](StatusOr<proto::ObjectReply> reply) { ended = reply.status(); });
    context.restart();
    context.poll();
    return ended.value_or(OkStatus());
  };
  EXPECT_EQ(ToErrno(call()), EINVAL);
  EXPECT_EQ(ToErrno(call()), EINVAL);
  EXPECT_TRUE(targets.Paths().empty());
  targets.SetMap(MapOf(0, "nowhere else"));
  targets.Reset(2, 2);
  EXPECT_EQ(ToErrno(call()), EIO);  // begun in the old epoch
  epoch = 2;
  EXPECT_EQ(ToErrno(call()), EINVAL);
  targets.Close();
}

// Servers that answer with their name as instance, on one thread.
class TargetsTest : public testing::Test {
 protected:
  struct Server {
    uint64_t instance = 0;
    uint64_t grant = 0;   // to each client
    bool frozen = false;  // what comes is never answered
    std::vector<proto::ObjectRequest> seen;
    std::vector<std::shared_ptr<IncomingCall>> kept;
    std::unique_ptr<Listener> listener;
  };

  TargetsTest() {
    targets_.Reset(1, 1);
    for (uint64_t n = 1; n <= 3; ++n) {
      Server* server = &servers_[n];
      server->instance = n;
      server->listener = *transport_->Listen(Address(n), [server](std::shared_ptr<IncomingCall> call) {
        return Serve(server, std::move(call));
      });
    }
  }
  ~TargetsTest() override {
    targets_.Close();
    context_.restart();
    context_.poll();
    for (auto& [n, server] : servers_) server.kept.clear();
  }

  static std::string Address(uint64_t n) { return "inproc:" + std::to_string(n); }

  // OST 0, 1, … at these servers.
  void SetMap(std::vector<uint64_t> servers) {
    proto::ClusterMap map;
    for (size_t i = 0; i < servers.size(); ++i) {
      auto* ost = map.add_osts();
      ost->mutable_info()->set_index(static_cast<uint32_t>(i));
      ost->set_address(Address(servers[i]));
    }
    targets_.SetMap(map);
  }

  std::shared_ptr<std::optional<StatusOr<proto::ObjectReply>>> Start(OstIndex ost,
                                                                     std::vector<MemorySpan> memory = {}) {
    auto result = std::make_shared<std::optional<StatusOr<proto::ObjectReply>>>();
    proto::ObjectRequest request;
    request.set_ost(ost);
    request.mutable_punch()->set_length(4096);
    const CallMemory kind = memory.empty() ? CallMemory::kNone : CallMemory::kPutTarget;
    Spawn(context_.get_executor(), targets_.Call(1, std::move(request), kind, std::move(memory)),
          [result](StatusOr<proto::ObjectReply> reply) { *result = std::move(reply); });
    Poll();
    return result;
  }

  // The server that answers a call to the OST; 0: none.
  uint64_t ServerOf(OstIndex ost) {
    auto reply = Start(ost);
    return reply->has_value() && (*reply)->ok() ? (**reply)->instance() : 0;
  }

  // Everything that can happen without time going by.
  void Poll() {
    context_.restart();
    context_.poll();
  }

  asio::io_context context_;
  std::unique_ptr<Transport> transport_ =
      MakeInprocTransport(MakeInprocNetwork(), context_.get_executor(), RealClock());
  Targets targets_{*transport_, RealClock(), RetryPolicy(), [](OstIndex, uint64_t) {}};
  std::map<uint64_t, Server> servers_;

 private:
  static Task<void> Serve(Server* server, std::shared_ptr<IncomingCall> call) {
    proto::ObjectRequest request;
    EXPECT_TRUE(request.ParseFromString(call->body()));
    server->seen.push_back(std::move(request));
    if (server->frozen) {
      server->kept.push_back(std::move(call));
      co_return;
    }
    proto::ObjectReply reply;
    reply.set_instance(server->instance);
    reply.set_grant(server->grant);
    std::string text = reply.SerializeAsString();
    (void)co_await call->Reply(std::move(text));
  }
};

TEST_F(TargetsTest, AnOstMovesAndTheOthersOfItsServerStay) {
  SetMap({1, 1, 2});
  EXPECT_EQ(ServerOf(0), 1u);
  EXPECT_EQ(ServerOf(1), 1u);
  EXPECT_EQ(ServerOf(2), 2u);
  SetMap({1, 2, 2});
  EXPECT_EQ(ServerOf(0), 1u);
  EXPECT_EQ(ServerOf(1), 2u);
  EXPECT_EQ(ServerOf(2), 2u);
  // The session's numbers of the OST go on.
  EXPECT_EQ(servers_[2].seen[1].ost(), 1u);
  EXPECT_EQ(servers_[2].seen[1].sequence(), 2u);
  EXPECT_EQ(servers_[2].seen[1].low_water(), 2u);
}

TEST_F(TargetsTest, WhatAFrozenServerHasIsRepeatedWhereTheOstIsNow) {
  SetMap({1, 1});
  servers_[1].frozen = true;
  std::vector<std::byte> memory(4096, std::byte{0xaa});
  std::vector<MemorySpan> spans = {{*transport_->Register(memory.data(), memory.size()), 0, memory.size()}};
  auto moving = Start(0, spans);
  auto staying = Start(1);
  ASSERT_EQ(servers_[1].kept.size(), 2u);
  SetMap({2, 1});
  Poll();
  ASSERT_TRUE(moving->has_value() && (*moving)->ok());
  EXPECT_EQ((**moving)->instance(), 2u);
  EXPECT_EQ(servers_[2].seen.back().sequence(), servers_[1].seen.front().sequence());
  EXPECT_FALSE(staying->has_value());
  // The old server's late answer touches nothing.
  std::vector<std::byte> late(4096, std::byte{0xbb});
  std::vector<std::span<const std::byte>> buffers = {late};
  std::optional<Status> put;
  Spawn(context_.get_executor(), servers_[1].kept[0]->Put(0, buffers),
        [&put](Status status) { put = status; });
  Poll();
  ASSERT_TRUE(put.has_value());
  EXPECT_FALSE(put->ok());
  EXPECT_EQ(memory, std::vector<std::byte>(4096, std::byte{0xaa}));
  SetMap({2, 3});
  Poll();
  ASSERT_TRUE(staying->has_value() && (*staying)->ok());
  EXPECT_EQ((**staying)->instance(), 3u);
}

// Where the new address is none that this client can use the call waits for one that is.
TEST_F(TargetsTest, AMoveToNowhereIsMendedByTheNextMap) {
  SetMap({1});
  servers_[1].frozen = true;
  auto call = Start(0);
  targets_.SetMap(MapOf(0, "nowhere"));
  Poll();
  EXPECT_FALSE(call->has_value());
  EXPECT_EQ(ToErrno((*Start(0))->status()), EINVAL);
  SetMap({2});
  Poll();
  ASSERT_TRUE(call->has_value() && (*call)->ok());
  EXPECT_EQ((**call)->instance(), 2u);
}

// Seeds 1757000110 and 1748000859 of OSTs with two members: the answer to a connection came behind the maps
// of after it, and the client asked for ever where the OST had been.
TEST_F(TargetsTest, AMapThatComesBehindNewerOnesChangesNothing) {
  auto map_of = [](uint64_t instance, uint64_t version, uint64_t server) {
    proto::ClusterMap map = MapOf(0, Address(server));
    map.set_instance(instance);
    map.set_version(version);
    return map;
  };
  targets_.SetMap(map_of(5, 31, 1));
  targets_.SetMap(map_of(5, 30, 2));
  EXPECT_EQ(ServerOf(0), 1u);
  targets_.SetMap(map_of(5, 32, 2));
  EXPECT_EQ(ServerOf(0), 2u);
  targets_.SetMap(map_of(6, 1, 3));  // of another MDS, which counts anew
  EXPECT_EQ(ServerOf(0), 3u);
}

TEST_F(TargetsTest, ThereIsOnePathToEachServerThatIsUsed) {
  using testing::ElementsAre;
  using testing::StartsWith;
  SetMap({1, 1, 2});
  EXPECT_TRUE(targets_.Paths().empty());
  for (OstIndex ost : {0, 1, 2}) ServerOf(ost);
  EXPECT_THAT(targets_.Paths(), ElementsAre(StartsWith("inproc:1 "), StartsWith("inproc:2 ")));
  SetMap({1, 3, 2});
  EXPECT_THAT(targets_.Paths(),
              ElementsAre(StartsWith("inproc:1 "), StartsWith("inproc:2 "), StartsWith("inproc:3 ")));
  SetMap({3, 3, 2});
  EXPECT_THAT(targets_.Paths(), ElementsAre(StartsWith("inproc:2 "), StartsWith("inproc:3 ")));
  std::byte byte{};
  auto region = *transport_->Register(&byte, 1);
  EXPECT_EQ(targets_.PathTo(0, *region), "inproc");
  EXPECT_EQ(targets_.PathTo(7, *region), "");
  // A new session begins without any.
  targets_.Reset(2, 2);
  EXPECT_TRUE(targets_.Paths().empty());
  EXPECT_EQ(targets_.PathTo(0, *region), "");
}

// Nobody knows on which a file will lie: all of them have the space, or none has it set aside.
TEST_F(TargetsTest, SpaceIsSetAsideOnEachOstThatHasNotBeenRemoved) {
  std::map<OstIndex, uint64_t> reserved;
  EXPECT_FALSE(targets_.TryReserveOnEach(1000, &reserved)) << "there is no OST";
  SetMap({1, 2, 3});
  for (auto& [n, server] : servers_) server.grant = n * 10'000;
  auto ask = [&](OstIndex ost) {
    std::optional<bool> granted;
    Spawn(context_.get_executor(), targets_.Reserve(1, ost, 1, 0), [&](bool result) { granted = result; });
    Poll();
    EXPECT_TRUE(granted.value_or(false)) << ost;
    targets_.Unreserve(ost, 1);
  };
  ask(0);
  ask(1);
  EXPECT_FALSE(targets_.TryReserveOnEach(1000, &reserved)) << "OST 2 has granted nothing";
  ask(2);
  EXPECT_TRUE(targets_.TryReserveOnEach(6000, &reserved));
  EXPECT_FALSE(targets_.TryReserveOnEach(6000, &reserved)) << "OST 0 has granted less";
  EXPECT_TRUE(targets_.TryReserveOnEach(4000, &reserved));
  EXPECT_THAT(reserved, testing::ElementsAre(testing::Pair(0, 10'000), testing::Pair(1, 10'000),
                                             testing::Pair(2, 10'000)));
  EXPECT_FALSE(targets_.TryReserveOnEach(1, &reserved));
  proto::ClusterMap map;
  for (uint32_t i = 1; i < 3; ++i) {
    map.add_osts()->mutable_info()->set_index(i);
    map.mutable_osts(static_cast<int>(i) - 1)->set_address(Address(i + 1));
  }
  map.add_removed()->set_index(0);
  map.set_version(2);
  targets_.SetMap(map);
  EXPECT_TRUE(targets_.TryReserveOnEach(6000, &reserved));
  EXPECT_EQ(reserved[0], 10'000u);
  EXPECT_EQ(reserved[1], 16'000u);
  targets_.Unreserve(1, 16'000);
  targets_.Unreserve(2, 16'000);
  EXPECT_TRUE(targets_.TryReserveOnEach(20'000, &reserved));
}

TEST_F(TargetsTest, CloseEndsWhatEveryServerHas) {
  SetMap({1, 2});
  servers_[1].frozen = servers_[2].frozen = true;
  auto first = Start(0), second = Start(1);
  targets_.Close();
  Poll();
  ASSERT_TRUE(first->has_value() && second->has_value());
  EXPECT_EQ(ToErrno((*first)->status()), ESHUTDOWN);
  EXPECT_EQ(ToErrno((*second)->status()), ESHUTDOWN);
  EXPECT_EQ(ToErrno((*Start(0))->status()), ESHUTDOWN);
}

}  // namespace
}  // namespace nacre::client
