// Properties of the transport over verbs beyond the contract of every transport.
#include "transport/verbs/verbs_transport.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>

#include "common/random.h"
#include "tests/transport/transport_fixture.h"
#include "tests/transport/verbs/fake_rdma.h"
#include "transport/tcp/client_connection.h"
#include "transport/verbs/message.h"

namespace nacre::verbs {
namespace {

using Bytes = std::vector<std::byte>;

Task<void> FillMemory(CallPtr call) {
  Bytes data(call->memory_size(), std::byte{0x77});
  const std::span<const std::byte> out(data);
  EXPECT_EQ(co_await call->Put(0, std::span(&out, 1)), OkStatus());
  (void)co_await call->Reply(std::string());
}

class VerbsTransportTest : public TransportTest {};

TEST_P(VerbsTransportTest, ManyPiecesAreServedAndTooManyRefused) {
  Listen(FillMemory);
  auto peer = Connect();
  Bytes memory(2 * (kMaxSpans + 1), std::byte{0x11});
  auto region = Register(memory);
  std::vector<MemorySpan> spans;
  for (size_t i = 0; i < kMaxSpans; ++i) spans.push_back({region, 2 * i, 1});
  ASSERT_TRUE(Call(*peer, "", CallMemory::kPutTarget, spans).ok());
  for (size_t i = 0; i < kMaxSpans; ++i) {
    ASSERT_EQ(memory[2 * i], std::byte{0x77});
    ASSERT_EQ(memory[2 * i + 1], std::byte{0x11});
  }
  spans.push_back({region, 2 * kMaxSpans, 1});
  EXPECT_EQ(Call(*peer, "", CallMemory::kPutTarget, spans).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(memory[2 * kMaxSpans], std::byte{0x11});
}

// More at once than there are windows for: the rest waits.
TEST_P(VerbsTransportTest, CallsWithScatteredMemoryShareTheWindows) {
  Listen(FillMemory);
  auto peer = Connect();
  constexpr size_t kCalls = 60, kSpans = 12, kStride = 64;
  Bytes memory(kCalls * kSpans * kStride, std::byte{0x11});
  auto region = Register(memory);
  auto all = [](std::shared_ptr<Peer> peer, std::shared_ptr<MemoryRegion> region) -> Task<int> {
    std::vector<Task<bool>> calls;
    for (size_t i = 0; i < kCalls; ++i) {
      calls.push_back(
          [](std::shared_ptr<Peer> peer, std::shared_ptr<MemoryRegion> region, size_t i) -> Task<bool> {
            CallRequest request{"", CallMemory::kPutTarget, {}};
            for (size_t k = 0; k < kSpans; ++k)
              request.memory.push_back({region, (i * kSpans + k) * kStride, 32});
            auto reply = co_await peer->Call(std::move(request), 20s);
            co_return reply.ok();
          }(peer, region, i));
    }
    std::vector<bool> done = co_await WhenAll(std::move(calls));
    co_return static_cast<int>(std::count(done.begin(), done.end(), true));
  };
  EXPECT_EQ(Run(all(peer, region)), static_cast<int>(kCalls));
  for (size_t i = 0; i < memory.size(); ++i) {
    ASSERT_EQ(memory[i], i % kStride < 32 ? std::byte{0x77} : std::byte{0x11}) << i;
  }
  const FakeRdma* device = FakeRdma::Current();
  EXPECT_EQ(device == nullptr ? 0 : device->bound_windows(), 0);
}

// Writes until it cannot any more.
Task<void> WriteOnAndOn(CallPtr call) {
  Bytes data(call->memory_size(), std::byte{0xbb});
  const std::span<const std::byte> out(data);
  while (!data.empty()) {
    Status status = co_await call->Put(0, std::span(&out, 1));
    if (!status.ok()) break;
  }
  (void)co_await call->Reply(std::string());
}

// Calls that time out while the server writes; their memory is used for something else at once.
TEST_P(VerbsTransportTest, NobodyWritesIntoMemoryThatIsUsedAgain) {
  Listen(WriteOnAndOn);
  auto peer = Connect();
  constexpr size_t kEdge = 4096, kSize = 256 << 10;
  Bytes memory(kEdge + kSize + kEdge, std::byte{0xcc});
  auto region = Register(memory);
  SeededRandom random(1);
  for (int round = 0; round < 20; ++round) {
    ASSERT_TRUE(Call(*peer, "connects").ok());
    const Duration timeout = std::chrono::milliseconds(3 + random.Below(30));
    Status status = Call(*peer, "", CallMemory::kPutTarget, {{region, kEdge, kSize}}, timeout).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    std::fill_n(memory.data() + kEdge, kSize, std::byte{0x11});
    for (int i = 0; i < 5; ++i) ASSERT_TRUE(Call(*peer, "goes on").ok());
    for (size_t i = 0; i < memory.size(); ++i) {
      const bool inside = i >= kEdge && i < kEdge + kSize;
      ASSERT_EQ(memory[i], inside ? std::byte{0x11} : std::byte{0xcc}) << i << " in round " << round;
    }
  }
}

// Both ends of each have a TCP connection besides.
void AllowManyFiles() {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = limit.rlim_max;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
}

// Ten calls one behind the other: how long they took; nothing if one failed.
Task<Duration> TenCalls(std::shared_ptr<Peer> peer, MemorySpan memory) {
  const Duration begin = RealClock().Now();
  for (int i = 0; i < 10; ++i) {
    CallRequest request{"", CallMemory::kPutTarget, {}};
    request.memory.push_back(memory);
    auto reply = co_await peer->Call(std::move(request), 60s);
    if (!reply.ok()) co_return Duration::zero();
  }
  co_return RealClock().Now() - begin;
}

TEST_P(VerbsTransportTest, FiveHundredConnectionsAreServed) {
  AllowManyFiles();
  Listen(FillMemory);
  constexpr size_t kPeers = 500, kEach = 4096;
  Bytes memory(kPeers * kEach, std::byte{0x11});
  auto region = Register(memory);
  std::vector<std::shared_ptr<Peer>> peers;
  for (size_t i = 0; i < kPeers; ++i) {
    peers.push_back(Connect());
    ASSERT_TRUE(Call(*peers.back(), "", CallMemory::kPutTarget, {{region, i * kEach, kEach}}).ok()) << i;
  }
  auto all = [](std::vector<std::shared_ptr<Peer>> peers,
                std::shared_ptr<MemoryRegion> region) -> Task<std::vector<Duration>> {
    std::vector<Task<Duration>> calls;
    for (size_t i = 0; i < peers.size(); ++i) {
      MemorySpan span{region, i * kEach, kEach};
      calls.push_back(TenCalls(peers[i], std::move(span)));
    }
    co_return co_await WhenAll(std::move(calls));
  };
  std::vector<Duration> took = Run(all(peers, region));
  std::sort(took.begin(), took.end());
  EXPECT_GT(took.front(), Duration::zero());
  EXPECT_TRUE(memory == Bytes(memory.size(), std::byte{0x77}));
  std::printf("500 connections: the slowest took %.2f times as long as the median\n",
              static_cast<double>(took.back().count()) / static_cast<double>(took[kPeers / 2].count()));
}

INSTANTIATE_TEST_SUITE_P(Device, VerbsTransportTest, ::testing::ValuesIn(VerbsKinds()),
                         [](const auto& info) { return info.param.name; });

// Asks for behaviour that only a made-up device can show.
class FakeVerbsTest : public TransportTest {
 protected:
  static Task<Status> AttachNowhere(FakeVerbsTest* test) {
    std::string address = test->address();
    CO_ASSIGN_OR_RETURN(StreamSocket socket, co_await Dial(test->executor(), RealClock(), address, 5s));
    auto control = std::make_shared<ClientConnection>(std::move(socket), address, RealClock());
    std::string who = "the test";
    CO_RETURN_IF_ERROR(co_await control->Greet(std::move(who), 5s));
    Endpoint nowhere;
    nowhere.mtu = IBV_MTU_1024;
    nowhere.queue_pair = 99;
    nowhere.credits = 16;
    nowhere.gid = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1};
    std::string request = EncodeEndpoint(nowhere);
    absl::AnyInvocable<void(const Status&)> ignore = [](const Status&) {};
    StatusOr<std::string> reply = co_await control->Attach(std::move(request), 20s, std::move(ignore));
    control->Shutdown(absl::CancelledError("the test is done"));
    co_return reply.status();
  }
};

TEST_P(FakeVerbsTest, AnAddressThatNobodyHasHoldsUpNobody) {
  FakeRdma& device = *FakeRdma::Current();
  Listen(Echo);
  auto peer = Connect();
  ASSERT_TRUE(Call(*peer, "before").ok());
  std::promise<Status> ended;
  Spawn(executor(), AttachNowhere(this), [&ended](Status status) { ended.set_value(status); });
  ASSERT_TRUE(Eventually([&] { return device.waiting_joins() == 1; }));
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(Call(*peer, "meanwhile").ok());
  auto other = Connect();
  EXPECT_TRUE(Call(*other, "another connection").ok());
  device.LetJoinsFail();
  EXPECT_EQ(ended.get_future().get().code(), absl::StatusCode::kUnavailable);
  other.reset();
  peer.reset();
  EXPECT_TRUE(Eventually([&] { return device.queue_pairs() == 0; }));
}

TEST_P(FakeVerbsTest, ADeviceThatGoesEndsItsConnectionsAndComesBack) {
  FakeRdma& device = *FakeRdma::Current();
  Listen(FillMemory);
  auto peer = Connect();
  Bytes memory(100'000);
  auto spans = Whole(memory);
  ASSERT_TRUE(Call(*peer, "", CallMemory::kPutTarget, spans).ok());
  device.Remove();
  ASSERT_TRUE(Eventually([&] { return device.open_contexts() == 0; }));  // though nobody calls
  EXPECT_EQ(device.queue_pairs(), 0);
  EXPECT_EQ(Call(*peer, "", CallMemory::kPutTarget, spans).status().code(), absl::StatusCode::kUnavailable);
  device.Restore();
  EXPECT_TRUE(Call(*peer, "", CallMemory::kPutTarget, spans).ok());
}

TEST_P(FakeVerbsTest, ADeviceThatNobodyUsesJustNowIsLetGoToo) {
  FakeRdma& device = *FakeRdma::Current();
  Listen(Echo);
  ASSERT_TRUE(Call(*Connect(), "x").ok());
  ASSERT_TRUE(Eventually([&] { return device.queue_pairs() == 0; }));
  EXPECT_GT(device.open_contexts(), 0);
  device.Remove();
  EXPECT_TRUE(Eventually([&] { return device.open_contexts() == 0; }));
}

// A connection that ends in the middle of everything keeps no receive of those that all share.
TEST_P(FakeVerbsTest, ConnectionsThatEndTakeNoReceivesAlong) {
  FakeRdma& device = *FakeRdma::Current();
  Listen(Echo);
  const std::string body(100'000, 'b');
  for (int round = 0; round < 20; ++round) {
    auto peer = Connect();
    ASSERT_TRUE(Call(*peer, "there").ok());
    std::promise<void> ended;
    Spawn(
        executor(),
        [](std::shared_ptr<Peer> peer, std::string body) -> Task<void> {
          CallRequest request{std::move(body), CallMemory::kNone, {}};
          (void)co_await peer->Call(std::move(request), 20s);
        }(peer, body),
        [&ended]() { ended.set_value(); });
    peer->Close();
    ended.get_future().get();
    peer.reset();
    ASSERT_TRUE(Eventually([&] { return device.queue_pairs() == 0; }));
    // 19 for each connection, of which there was one at each of the two ends.
    ASSERT_TRUE(Eventually([&] { return device.receives() == 2 * 19; })) << device.receives();
  }
}

INSTANTIATE_TEST_SUITE_P(Device, FakeVerbsTest, ::testing::ValuesIn(FakeVerbsKinds()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace nacre::verbs
