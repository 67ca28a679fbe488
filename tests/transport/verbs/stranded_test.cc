// A device that does not answer when it is told to destroy something goes on writing into the memory that it
// was told of, until it is closed.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

#include "common/metrics.h"
#include "tests/transport/transport_fixture.h"
#include "tests/transport/verbs/fake_rdma.h"

namespace nacre::verbs {
namespace {

using Bytes = std::vector<std::byte>;
constexpr size_t kStrandedSize = 100'000;

class StrandedTest : public TransportTest {
 protected:
  static FakeRdma& device() { return *FakeRdma::Current(); }

  // A call that the server goes on writing into until it cannot any more.
  Status CallThatTimesOut(Peer& peer, const std::shared_ptr<MemoryRegion>& region) {
    return Call(peer, "", CallMemory::kPutTarget, {{region, 0, kStrandedSize}}, 50ms).status();
  }
};

Task<void> WriteUntilItFails(CallPtr call) {
  Bytes data(call->memory_size(), std::byte{0xbb});
  const std::span<const std::byte> out(data);
  while (!data.empty()) {
    if (!(co_await call->Put(0, std::span(&out, 1))).ok()) break;
  }
  (void)co_await call->Reply(std::string());
}

TEST_P(StrandedTest, AQueuePairThatStaysKeepsTheMemoryOfItsCallsUntilTheDeviceIsClosed) {
  Listen(WriteUntilItFails);
  auto peer = Connect();
  Bytes memory(kStrandedSize);
  auto region = Register(memory);
  for (int round = 1; round <= 3; ++round) {
    ASSERT_TRUE(Eventually([&] { return Call(*peer, "connects").ok(); }));
    const int64_t rails = GetCounter("transport.verbs.rails_failed").Get();
    device().RefuseToDestroy(EIO);
    const Status status = CallThatTimesOut(*peer, region);
    const int left = device().left();
    std::fill(memory.begin(), memory.end(), std::byte{0x11});
    EXPECT_FALSE(status.ok());
    ASSERT_GE(device().refusals(), round);
    EXPECT_LE(left, 1) << "the client's is there still, not only the server's";
    EXPECT_GT(GetCounter("transport.verbs.rails_failed").Get(), rails);
    device().RefuseToDestroy(0);
    // The server's ends after the client's, and its next one may end with it.
    ASSERT_TRUE(Eventually([] { return device().left() == 0 && device().queue_pairs() == 0; }));
    ASSERT_TRUE(Eventually([&] { return Call(*peer, "goes on").ok(); }));
    EXPECT_EQ(std::count(memory.begin(), memory.end(), std::byte{0x11}),
              static_cast<ptrdiff_t>(kStrandedSize));
  }
  EXPECT_TRUE(Eventually([] { return device().open_contexts() == 2; })) << device().open_contexts();
}

TEST_P(StrandedTest, SoDoesAWindowThatStays) {
  Listen(WriteUntilItFails);
  auto peer = Connect();
  Bytes memory(kStrandedSize);
  auto region = Register(memory);
  ASSERT_TRUE(Call(*peer, "connects").ok());
  device().RefuseToFreeWindows(EIO);
  const Status status = CallThatTimesOut(*peer, region);
  const int left = device().left();
  std::fill(memory.begin(), memory.end(), std::byte{0x11});
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_EQ(left, 0);
  device().RefuseToFreeWindows(0);
  ASSERT_TRUE(Eventually([&] { return Call(*peer, "goes on").ok(); }));
  EXPECT_EQ(std::count(memory.begin(), memory.end(), std::byte{0x11}), static_cast<ptrdiff_t>(kStrandedSize));
}

// A transfer that was posted for a server's handler uses the handler's memory, so it must not outlast that
// either. Here a read waits behind a reply that the client's device has no receive for, when the client
// leaves.
TEST_P(StrandedTest, AServersTransferEndsWhenItsDeviceIsClosed) {
  struct State {
    OneShot<Unit> reply;
    std::atomic<bool> waits = false, replied = false;
    std::atomic<int> left = -1;
  } state;
  Listen([&state](CallPtr call) -> Task<void> {
    return [](State& state, CallPtr call) -> Task<void> {
      if (call->body() == "waits") {
        state.waits = true;
        co_await state.reply.Wait();
        (void)co_await call->Reply(std::string());
        state.replied = true;
      } else if (call->memory_size() > 0) {
        device().MakeAllDeaf();
        state.reply.Set({});
        while (!state.replied) co_await Yield();
        Bytes data(call->memory_size());
        const std::span<std::byte> in(data);
        EXPECT_FALSE((co_await call->Get(0, std::span(&in, 1))).ok());
        state.left = device().left();
      } else {
        (void)co_await call->Reply(std::string());
      }
    }(state, std::move(call));
  });
  auto peer = Connect();
  ASSERT_TRUE(Call(*peer, "connects").ok());
  Bytes memory(kStrandedSize);
  auto region = Register(memory);
  device().RefuseToDestroy(EIO);
  CallRequest waits;
  waits.body = "waits";
  std::atomic<bool> ended = false;
  Spawn(executor(), peer->Call(std::move(waits), 300ms), [&ended](const auto&) { ended = true; });
  ASSERT_TRUE(Eventually([&] { return state.waits.load(); }));
  EXPECT_FALSE(Call(*peer, "", CallMemory::kGetSource, {{region, 0, kStrandedSize}}, 300ms).ok());
  ASSERT_TRUE(Eventually([&] { return state.left >= 0 && ended; }));
  EXPECT_EQ(state.left, 0);
  device().RefuseToDestroy(0);
  EXPECT_TRUE(Eventually([&] { return Call(*peer, "goes on").ok(); }));
}

INSTANTIATE_TEST_SUITE_P(Kinds, StrandedTest, ::testing::ValuesIn(FakeVerbsKinds()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace nacre::verbs
