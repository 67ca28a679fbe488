// Which of a peer's connections calls go over, by whether their bytes go through the socket.
#include <gtest/gtest.h>

#include <future>
#include <mutex>
#include <utility>
#include <vector>

#include "common/metrics.h"
#include "tests/transport/transport_fixture.h"
#include "transport/shm/shm_counters.h"
#include "transport/shm/shm_transport.h"

namespace nacre {
namespace {

constexpr int kConnections = 6, kSmall = 2;

class SpreadTest : public TransportTest {
 protected:
  Handler Hold() {
    return [this](CallPtr call) -> Task<void> { return HoldOne(this, std::move(call)); };
  }
  static Task<void> HoldOne(SpreadTest* test, CallPtr call) {
    std::lock_guard lock(test->mutex_);
    test->held_.push_back(std::move(call));
    co_return;
  }
  size_t held() {
    std::lock_guard lock(mutex_);
    return held_.size();
  }
  void ReplyToAll() {
    std::vector<CallPtr> calls;
    {
      std::lock_guard lock(mutex_);
      calls.swap(held_);
    }
    for (const CallPtr& call : calls) {
      std::string reply = "done";
      EXPECT_TRUE(Run(call->Reply(std::move(reply))).ok());
    }
  }
  // How many connections are made for many calls at once, with so much memory each.
  int64_t ConnectionsFor(size_t size) {
    TcpOptions stream;
    stream.connections = kConnections;
    stream.small_connections = kSmall;
    const auto transport = MakeShmTransport(executor(), RealClock(), {.stream = stream});
    const auto peer = transport->Connect(address()).value();
    std::vector<std::byte> memory(size);
    const std::vector<MemorySpan> span{{transport->Register(memory.data(), size).value(), 0, size}};
    const Counter& made = GetCounter("transport.shm.server.connections");
    const int64_t before = made.Get();
    std::vector<std::future<bool>> calls;
    for (int i = 0; i < 3 * kConnections; ++i)
      calls.push_back(
          std::async(std::launch::async, [&] { return Call(*peer, "", CallMemory::kPutTarget, span).ok(); }));
    EXPECT_TRUE(Eventually([&] { return held() == calls.size(); }));
    const int64_t connections = made.Get() - before;
    ReplyToAll();
    for (auto& call : calls) EXPECT_TRUE(call.get());
    peer->Close();
    return connections;
  }

  std::mutex mutex_;
  std::vector<CallPtr> held_;
};

// Others would wait behind their bytes.
TEST_P(SpreadTest, CallsWhoseBytesGoThroughTheSocketShareAFew) {
  Listen(Hold());
  EXPECT_EQ(ConnectionsFor(shm::kMinShared - 1), kSmall);
}

TEST_P(SpreadTest, CallsWhoseBytesAreShownHaveAllTheOthers) {
  Listen(Hold());
  EXPECT_EQ(ConnectionsFor(shm::kMinShared), kConnections - kSmall);
  EXPECT_EQ(ConnectionsFor(1 << 20), kConnections - kSmall);
}

INSTANTIATE_TEST_SUITE_P(Kinds, SpreadTest, ::testing::ValuesIn(ShmKinds()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace nacre
