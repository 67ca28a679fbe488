// How much is under way at once: what servers may put at a client, and what a server has in flight.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

#include "tests/transport/transport_fixture.h"
#include "tests/transport/verbs/fake_rdma.h"
#include "transport/verbs/verbs_transport.h"

namespace nacre::verbs {
namespace {

using Bytes = std::vector<std::byte>;

constexpr uint64_t kPutBudget = 1 << 20;
constexpr uint64_t kTransferBudget = 512 << 10;  // two of the fake device's largest messages

class NarrowSetup : public TransportSetup {
 public:
  std::unique_ptr<Transport> Make(Executor executor) override {
    VerbsOptions options;
    options.rail.put_budget = kPutBudget;
    options.rail.transfer_budget = kTransferBudget;
    options.rail.lost_after = 1s;
    return MakeVerbsTransport(std::move(executor), RealClock(), std::move(options));
  }
  std::string ListenAddress() override { return "127.0.0.1:0"; }

 private:
  const FakeRdma device_;
};

class FlowTest : public TransportTest {
 protected:
  // The bytes that the servers may be putting at the client at one time, as they see it.
  struct Announced {
    std::atomic<uint64_t> now = 0, most = 0;
    std::atomic<int> calls = 0;
    OneShot<Unit> open;
    bool gated = false;
  };

  void ListenAndCount() {
    Listen([this](CallPtr call) -> Task<void> {
      return [](Announced& announced, CallPtr call) -> Task<void> {
        const uint64_t size = call->memory_size();
        const uint64_t now = announced.now += size;
        for (uint64_t most = announced.most;
             most < now && !announced.most.compare_exchange_weak(most, now);) {
        }
        ++announced.calls;
        while (announced.gated && size > 64 << 10 && !announced.open.IsSet()) {
          co_await Yield();
        }
        const Bytes data(size, std::byte{0x77});
        const std::span<const std::byte> out(data);
        EXPECT_EQ(co_await call->Put(0, std::span(&out, 1)), OkStatus());
        announced.now -= size;
        (void)co_await call->Reply(std::string());
      }(announced_, std::move(call));
    });
  }

  void Start(std::shared_ptr<Peer> peer, MemorySpan span) {
    ++started_;
    Spawn(
        executor(),
        [](std::shared_ptr<Peer> peer, MemorySpan span) -> Task<bool> {
          CallRequest request{"", CallMemory::kPutTarget, {}};
          request.memory.push_back(std::move(span));
          auto reply = co_await peer->Call(std::move(request), 60s);
          co_return reply.ok();
        }(std::move(peer), std::move(span)),
        [this](bool ok) { ++(ok ? done_ : failed_); });
  }
  bool AllAreDone() {
    return Eventually([this] { return done_ == started_; });
  }
  bool AllHas77(const Bytes& memory) {
    return std::all_of(memory.begin(), memory.end(), [](std::byte b) { return b == std::byte{0x77}; });
  }

  Announced announced_;
  std::atomic<int> started_ = 0, done_ = 0, failed_ = 0;
};

TEST_P(FlowTest, ManyServersTogetherPutNoMoreThanTheClientAllows) {
  ListenAndCount();
  constexpr size_t kPeers = 20, kCalls = 5, kSize = 200'000;
  Bytes memory(kPeers * kCalls * kSize);
  auto region = Register(memory);
  std::vector<std::shared_ptr<Peer>> peers;
  for (size_t i = 0; i < kPeers; ++i) {
    peers.push_back(Connect());
    for (size_t k = 0; k < kCalls; ++k) Start(peers[i], MemorySpan{region, (i * kCalls + k) * kSize, kSize});
  }
  EXPECT_TRUE(AllAreDone()) << done_ << " of " << started_;
  EXPECT_TRUE(AllHas77(memory));
  EXPECT_LE(announced_.most, kPutBudget);
  EXPECT_GE(announced_.most, 2 * kSize);
  EXPECT_LE(FakeRdma::Current()->most_bytes_under_way(), kTransferBudget);
}

TEST_P(FlowTest, ASmallCallPassesAQueueOfLargeOnes) {
  announced_.gated = true;
  ListenAndCount();
  auto peer = Connect();
  constexpr size_t kCalls = 10, kSize = 300'000;
  Bytes memory(kCalls * kSize), small(64 << 10);
  auto region = Register(memory);
  for (size_t i = 0; i < kCalls; ++i) Start(peer, MemorySpan{region, i * kSize, kSize});
  auto waits = [&] {
    uint64_t waits = 0;
    for (const PathStats& stats : peer->path().stats) waits += stats.credit_waits;
    return waits;
  };
  ASSERT_TRUE(
      Eventually([&] { return announced_.calls == 3 && waits() == kCalls - 3; }));  // no room for more
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(Call(*peer, "", CallMemory::kPutTarget, Whole(small)).ok());
  EXPECT_EQ(announced_.calls, 13);
  announced_.open.Set({});
  EXPECT_TRUE(AllAreDone());
  EXPECT_TRUE(AllHas77(memory) && AllHas77(small));
  EXPECT_EQ(waits(), kCalls - 3);
}

TEST_P(FlowTest, ACallBeyondTheBudgetIsServed) {
  ListenAndCount();
  auto peer = Connect();
  constexpr size_t kSize = 3 * kPutBudget;
  Bytes memory(4 * kSize);
  auto region = Register(memory);
  for (size_t i = 0; i < 4; ++i) Start(peer, MemorySpan{region, i * kSize, kSize});
  EXPECT_TRUE(AllAreDone());
  EXPECT_TRUE(AllHas77(memory));
  EXPECT_EQ(announced_.most, kSize);
}

TEST_P(FlowTest, CallsThatWaitEndWithTheirPeerOrTheirTime) {
  announced_.gated = true;
  ListenAndCount();
  auto peer = Connect(), other = Connect();
  constexpr size_t kSize = kPutBudget;
  Bytes memory(4 * kSize);
  auto region = Register(memory);
  Start(peer, MemorySpan{region, 0, kSize});
  ASSERT_TRUE(Eventually([&] { return announced_.calls == 1; }));
  Start(other, MemorySpan{region, kSize, kSize});
  EXPECT_EQ(Call(*peer, "", CallMemory::kPutTarget, {{region, 2 * kSize, kSize}}, 50ms).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  other->Close();
  EXPECT_TRUE(Eventually([&] { return failed_ == 1; }));
  announced_.open.Set({});
  EXPECT_TRUE(Eventually([&] { return done_ == 1; }));
  EXPECT_TRUE(Call(*peer, "", CallMemory::kPutTarget, {{region, 3 * kSize, kSize}}).ok());
}

// The reply is ready long before all has been posted.
TEST_P(FlowTest, AReplyDoesNotOvertakeWhatWasLent) {
  Bytes data(16 * kTransferBudget, std::byte{0x77});
  auto own = server().Register(data.data(), data.size());
  ASSERT_TRUE(own.ok());
  Listen([&data](CallPtr call) -> Task<void> {
    return [](const Bytes& data, CallPtr call) -> Task<void> {
      const std::span<const std::byte> out(data);
      auto keep = std::make_shared<int>();
      EXPECT_EQ(co_await call->Lend(0, std::span(&out, 1), std::move(keep)), OkStatus());
      if (call->body() == "forgets") co_return;
      (void)co_await call->Reply(std::string());
    }(data, std::move(call));
  });
  auto peer = Connect();
  Bytes memory(data.size());
  for (int i = 0; i < 5; ++i) {
    std::fill(memory.begin(), memory.end(), std::byte{0x11});
    ASSERT_TRUE(Call(*peer, "", CallMemory::kPutTarget, Whole(memory)).ok());
    EXPECT_TRUE(AllHas77(memory));
    EXPECT_FALSE(Call(*peer, "forgets", CallMemory::kPutTarget, Whole(memory)).ok());
  }
  EXPECT_LE(FakeRdma::Current()->most_bytes_under_way(), kTransferBudget);
}

// One client asks for much without a pause; the other one's small calls are served meanwhile.
TEST_P(FlowTest, AServerServesSmallTransfersBesideLargeOnes) {
  ListenAndCount();
  auto large = Connect(), small = Connect();
  constexpr size_t kSize = 8 << 20;
  Bytes memory(4 * kSize), few(4096);
  auto region = Register(memory);
  auto few_region = Register(few);
  ASSERT_TRUE(Call(*small, "", CallMemory::kPutTarget, {{few_region, 0, few.size()}}).ok());
  for (size_t i = 0; i < 4; ++i) Start(large, MemorySpan{region, i * kSize, kSize});
  int beside = 0;
  while (done_ < 4 && failed_ == 0) {
    ASSERT_TRUE(Call(*small, "", CallMemory::kPutTarget, {{few_region, 0, few.size()}}).ok());
    beside += done_ < 4 ? 1 : 0;
  }
  EXPECT_GT(beside, 0);
  EXPECT_TRUE(AllHas77(memory) && AllHas77(few));
  EXPECT_LE(FakeRdma::Current()->most_bytes_under_way(), kTransferBudget);
}

// As soft-RoCE does now and then when it has sent packets again.
TEST_P(FlowTest, AConnectionWhoseDeviceLosesWorkIsGivenUp) {
  ListenAndCount();
  auto peer = Connect();
  Bytes memory(100'000);
  ASSERT_TRUE(Call(*peer, "", CallMemory::kPutTarget, Whole(memory)).ok());
  FakeRdma::Current()->MakeAllDeaf();
  const auto begin = RealClock().Now();
  EXPECT_EQ(Call(*peer, "", CallMemory::kPutTarget, Whole(memory), 60s).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_LT(RealClock().Now() - begin, 30s);
  EXPECT_TRUE(Call(*peer, "", CallMemory::kPutTarget, Whole(memory)).ok());
  EXPECT_TRUE(AllHas77(memory));
}

INSTANTIATE_TEST_SUITE_P(
    Device, FlowTest,
    ::testing::Values(TransportKind{"Narrow", [] { return std::make_unique<NarrowSetup>(); }, 1},
                      TransportKind{"NarrowThreads", [] { return std::make_unique<NarrowSetup>(); }, 3}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace nacre::verbs
