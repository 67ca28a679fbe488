// Puts into memory that the CPU must not touch, over each kind of transport: every stray access dies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "tests/transport/fake_device.h"
#include "tests/transport/transport_fixture.h"
#include "transport/shared_memory.h"

namespace nacre {
namespace {

constexpr size_t kDeviceBytes = 1 << 20;
constexpr std::byte kUntouched{0x5a};
constexpr char kNoCopies[] = "the RDMA device writes into this memory by itself";

class DeviceTest : public TransportTest {
 protected:
  void SetUp() override {
    TransportTest::SetUp();
    std::fill(device_->alias().begin(), device_->alias().end(), kUntouched);
    auto shared = SharedMemory::Create("nacre-device-test", kDeviceBytes);
    ASSERT_TRUE(shared.ok()) << shared.status();
    source_ = std::span((*shared)->data(), kDeviceBytes);
    const std::vector<std::byte> bytes = RandomBytes(kDeviceBytes, 7);
    std::copy(bytes.begin(), bytes.end(), source_.begin());
    auto registered = server().RegisterShared(*shared);
    ASSERT_TRUE(registered.ok()) << registered.status();
    source_region_ = *registered;
    auto region = client().RegisterDevice(device_, device_->data(), kDeviceBytes);
    if (ToErrno(region.status()) == EOPNOTSUPP) GTEST_SKIP() << region.status();
    ASSERT_TRUE(region.ok()) << region.status();
    region_ = *region;
  }

  // Puts `call->memory_size()` bytes of source_ in two halves.
  Handler PutHalves() {
    return [this](CallPtr call) -> Task<void> { return PutHalvesOf(source_, std::move(call)); };
  }

  static Task<void> PutHalvesOf(std::span<const std::byte> source, CallPtr call) {
    const size_t size = call->memory_size();
    std::vector<std::span<const std::byte>> first = {source.first(size / 2)};
    std::vector<std::span<const std::byte>> second = {source.subspan(size / 2, size - size / 2)};
    (void)co_await call->Put(size / 2, second);
    (void)co_await call->Put(0, first);
    std::string reply = "done";
    (void)co_await call->Reply(std::move(reply));
  }

  const std::shared_ptr<FakeDevice> device_ = std::make_shared<FakeDevice>(kDeviceBytes);
  std::span<std::byte> source_;
  std::shared_ptr<MemoryRegion> source_region_, region_;
};

TEST_P(DeviceTest, PutsOfOddSizesArriveAndTouchNothingElse) {
  Listen(PutHalves());
  auto peer = Connect();
  for (size_t size : {1, 4095, 16'384, 65'537, 700'001}) {
    std::fill(device_->alias().begin(), device_->alias().end(), kUntouched);
    // Two spans, the later addresses first.
    const size_t head = size / 3;
    auto reply = Call(*peer, "", CallMemory::kPutTarget,
                      {{region_, 200'003, head}, {region_, 200'003 + head + 5, size - head}});
    ASSERT_TRUE(reply.ok()) << reply.status();
    const auto memory = device_->alias();
    EXPECT_TRUE(std::equal(source_.begin(), source_.begin() + head, memory.begin() + 200'003)) << size;
    EXPECT_TRUE(
        std::equal(source_.begin() + head, source_.begin() + size, memory.begin() + 200'003 + head + 5))
        << size;
    EXPECT_EQ(std::count(memory.begin(), memory.begin() + 200'003, kUntouched), 200'003);
    const auto behind = memory.subspan(200'003 + size + 5);
    EXPECT_EQ(static_cast<size_t>(std::count(behind.begin(), behind.end(), kUntouched)), behind.size());
  }
}

// Extents of any place and size, in one call.
TEST_P(DeviceTest, RandomExtentsArriveAndTouchNothingElse) {
  Listen(PutHalves());
  auto peer = Connect();
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    SeededRandom random(seed);
    std::fill(device_->alias().begin(), device_->alias().end(), kUntouched);
    std::vector<std::byte> expected(kDeviceBytes, kUntouched);
    std::vector<MemorySpan> spans;
    size_t sent = 0;
    for (size_t at = random.Below(9000); at < kDeviceBytes; at += 1 + random.Below(20'000)) {
      const size_t length = std::min<size_t>(random.Below(30'000), kDeviceBytes - at);
      spans.push_back({region_, at, length});
      std::copy_n(source_.begin() + sent, length, expected.begin() + at);
      sent += length;
      at += length;
    }
    auto reply = Call(*peer, "", CallMemory::kPutTarget, spans);
    ASSERT_TRUE(reply.ok()) << reply.status();
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), device_->alias().begin())) << seed;
  }
}

TEST_P(DeviceTest, TheReplyWaitsForTheCopies) {
  if (!GetParam().copies) GTEST_SKIP() << kNoCopies;
  Listen(PutHalves());
  auto peer = Connect();
  device_->Hold();
  std::thread release([&] {
    EXPECT_TRUE(Eventually([&] { return device_->copies_waiting() > 0; }));
    EXPECT_EQ(device_->alias()[0], kUntouched);
    device_->Resume();
  });
  auto reply = Call(*peer, "", CallMemory::kPutTarget, {{region_, 0, kDeviceBytes}});
  release.join();
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_TRUE(std::equal(source_.begin(), source_.end(), device_->alias().begin()));
}

// A call that fails is over only when nothing can be copied to its memory any more.
TEST_P(DeviceTest, NoCopyComesAfterALostConnection) {
  if (!GetParam().copies) GTEST_SKIP() << kNoCopies;
  Listen(PutHalves());
  auto peer = Connect();
  device_->Hold();
  std::atomic<bool> over = false;
  std::thread cut([&] {
    EXPECT_TRUE(Eventually([&] { return device_->copies_waiting() > 0; }));
    peer->Close();
    EXPECT_FALSE(over);
    device_->Resume();
  });
  auto reply = Call(*peer, "", CallMemory::kPutTarget, {{region_, 0, kDeviceBytes}});
  over = true;
  EXPECT_EQ(device_->copies_waiting(), 0);
  const std::vector<std::byte> then(device_->alias().begin(), device_->alias().end());
  cut.join();
  // Sockets may have had the reply before they were cut.
  EXPECT_TRUE(absl::IsUnavailable(reply.status()) ||
              (reply.ok() && std::equal(source_.begin(), source_.end(), then.begin())))
      << reply.status();
  EXPECT_TRUE(std::equal(then.begin(), then.end(), device_->alias().begin()));
}

TEST_P(DeviceTest, ACopyThatFailsMakesTheCallFail) {
  if (!GetParam().copies) GTEST_SKIP() << kNoCopies;
  Listen(PutHalves());
  auto peer = Connect();
  device_->FailCopies(ErrnoError(EIO, "the device is broken"));
  auto reply = Call(*peer, "", CallMemory::kPutTarget, {{region_, 0, kDeviceBytes}});
  EXPECT_THAT(std::string(reply.status().message()), ::testing::HasSubstr("the device is broken"));
  device_->FailCopies(OkStatus());
  EXPECT_TRUE(Call(*peer, "", CallMemory::kPutTarget, {{region_, 0, kDeviceBytes}}).ok());
}

TEST_P(DeviceTest, MemoryOfTwoKindsInOneCallIsRefused) {
  Listen(Echo);
  auto peer = Connect();
  std::vector<std::byte> memory(100);
  auto host = Register(memory);
  EXPECT_EQ(Call(*peer, "", CallMemory::kPutTarget, {{region_, 0, 10}, {host, 0, 10}}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Call(*peer, "", CallMemory::kGetSource, {{region_, 0, 10}}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Kinds, DeviceTest, ::testing::ValuesIn(AllKinds()),
                         [](const auto& info) { return info.param.name; });

using ShmDeviceTest = DeviceTest;

TEST_P(ShmDeviceTest, TheServersMemoryIsPinnedOnceForAllConnections) {
  Listen(PutHalves());
  auto peer = Connect();
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(Call(*peer, "", CallMemory::kPutTarget, {{region_, 0, kDeviceBytes}}).ok());
  }
  constexpr int kCalls = 8;
  constexpr size_t kPart = kDeviceBytes / kCalls;
  std::vector<std::future<bool>> calls;
  for (int i = 0; i < kCalls; ++i)
    calls.push_back(std::async(std::launch::async, [&, i] {
      return Call(*peer, "", CallMemory::kPutTarget, {{region_, i * kPart, kPart}}).ok();
    }));
  for (auto& call : calls) EXPECT_TRUE(call.get());
  // The memory may lie on both sides of a unit's end.
  EXPECT_EQ(device_->pins(), device_->pinned().size() < kDeviceBytes ? 2 : 1);
}

INSTANTIATE_TEST_SUITE_P(Kinds, ShmDeviceTest, ::testing::ValuesIn(ShmKinds()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace nacre
