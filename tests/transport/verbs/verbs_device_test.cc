// Calls over verbs whose memory is a device's: the RDMA device writes there by itself, and nobody afterwards.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "common/metrics.h"
#include "tests/transport/fake_device.h"
#include "tests/transport/transport_fixture.h"
#include "tests/transport/verbs/fake_rdma.h"

namespace nacre::verbs {
namespace {

using ::testing::HasSubstr;

constexpr size_t kEdge = 4096, kBufferSize = 1 << 20, kWhole = kEdge + kBufferSize + kEdge;
constexpr std::byte kCanary{0x5a}, kFromServer{0x77};

// Puts until it cannot any more, or once.
Task<void> PutTimes(CallPtr call, int times) {
  std::vector<std::byte> data(call->memory_size(), kFromServer);
  const std::span<const std::byte> out(data);
  for (int i = 0; i < times; ++i) {
    Status status = co_await call->Put(0, std::span(&out, 1));
    if (!status.ok()) break;
  }
  (void)co_await call->Reply(std::string());
}

Task<void> PutOnce(CallPtr call) { return PutTimes(std::move(call), 1); }
Task<void> PutOnAndOn(CallPtr call) { return PutTimes(std::move(call), INT_MAX); }

class VerbsDeviceTest : public TransportTest {
 protected:
  void SetUp() override {
    TransportTest::SetUp();
    Fill(kCanary);
    auto region = client().RegisterDevice(device_, device_->data() + kEdge, kBufferSize);
    ASSERT_TRUE(region.ok()) << region.status();
    region_ = *region;
  }
  void TearDown() override {
    region_.reset();
    TransportTest::TearDown();
  }

  void Fill(std::byte value) { std::fill(device_->alias().begin(), device_->alias().end(), value); }
  bool All(std::byte inside) {
    const auto memory = device_->alias();
    const auto edges = std::count(memory.begin(), memory.begin() + kEdge, kCanary) +
                       std::count(memory.end() - kEdge, memory.end(), kCanary);
    return edges == 2 * kEdge &&
           std::count(memory.begin() + kEdge, memory.end() - kEdge, inside) == ptrdiff_t{kBufferSize};
  }
  std::vector<MemorySpan> Whole() { return {{region_, 0, kBufferSize}}; }

  const std::shared_ptr<FakeDevice> device_ = std::make_shared<FakeDevice>(kWhole);
  std::shared_ptr<MemoryRegion> region_;
};

TEST_P(VerbsDeviceTest, BytesLandByThemselvesAndAreFlushed) {
  Listen(PutOnce);
  auto peer = Connect();
  auto reply = Call(*peer, "", CallMemory::kPutTarget, Whole());
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_TRUE(All(kFromServer));
  EXPECT_GE(device_->flushes(), 1);
  EXPECT_EQ(peer->PathFor(*region_), "rdma+gpu");
}

TEST_P(VerbsDeviceTest, NobodyWritesAfterACallThatTimedOut) {
  Listen(PutOnAndOn);
  auto peer = Connect();
  SeededRandom random(3);
  for (int round = 0; round < 10; ++round) {
    ASSERT_TRUE(Call(*peer, "connects").ok());
    const Duration timeout = std::chrono::milliseconds(3 + random.Below(30));
    Status status = Call(*peer, "", CallMemory::kPutTarget, Whole(), timeout).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    const auto memory = device_->alias();
    std::fill(memory.begin() + kEdge, memory.end() - kEdge, std::byte{0x11});
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(Call(*peer, "goes on").ok());
    ASSERT_TRUE(All(std::byte{0x11})) << round;
  }
}

TEST_P(VerbsDeviceTest, NobodyWritesAfterALostConnection) {
  Listen(PutOnAndOn);
  auto peer = Connect();
  ASSERT_TRUE(Call(*peer, "connects").ok());
  std::thread cut([&] {
    EXPECT_TRUE(Eventually([&] { return device_->alias()[kEdge] == kFromServer; }));
    StopListening();
  });
  EXPECT_TRUE(absl::IsUnavailable(Call(*peer, "", CallMemory::kPutTarget, Whole()).status()));
  const auto memory = device_->alias();
  std::fill(memory.begin() + kEdge, memory.end() - kEdge, std::byte{0x11});
  cut.join();
  EXPECT_TRUE(All(std::byte{0x11}));
}

TEST_P(VerbsDeviceTest, FreedMemoryIsRegisteredAnewOrRefused) {
  Listen(PutOnce);
  auto peer = Connect();
  ASSERT_TRUE(Call(*peer, "", CallMemory::kPutTarget, Whole()).ok());
  device_->ChangeBufferId();
  Fill(kCanary);
  ASSERT_TRUE(Call(*peer, "", CallMemory::kPutTarget, Whole()).ok());
  EXPECT_TRUE(All(kFromServer));
}

// Links of a closed transport, which end by and by, would keep the GPU's context and its pinned
// memory.
TEST_P(VerbsDeviceTest, ADeviceThatNobodyUsesIsNotKept) {
  Listen(PutOnce);
  auto peer = Connect();
  auto device = std::make_shared<FakeDevice>(kWhole);
  auto region = client().RegisterDevice(device, device->data(), kBufferSize);
  ASSERT_TRUE(region.ok()) << region.status();
  ASSERT_TRUE(Call(*peer, "", CallMemory::kPutTarget, {{*region, 0, kBufferSize}}).ok());
  std::weak_ptr<FakeDevice> left = device;
  device.reset();
  EXPECT_FALSE(left.expired());
  region = absl::UnknownError("let go");
  EXPECT_TRUE(Eventually([&] { return left.expired(); }));
}

// Puts of 1 MiB out of registered memory, 16 at once: how long they took.
Task<Duration> PutAtOnce(std::shared_ptr<Peer> peer, std::shared_ptr<MemoryRegion> region) {
  const Duration begin = RealClock().Now();
  std::vector<Task<bool>> calls;
  for (size_t at = 0; at < region->size(); at += kBufferSize) {
    auto call = [](std::shared_ptr<Peer> peer, std::shared_ptr<MemoryRegion> region,
                   size_t at) -> Task<bool> {
      CallRequest request{"", CallMemory::kPutTarget, {}};
      request.memory.push_back({region, at, kBufferSize});
      auto reply = co_await peer->Call(std::move(request), 60s);
      co_return reply.ok();
    };
    calls.push_back(call(peer, region, at));
  }
  for (bool done : co_await WhenAll(std::move(calls))) EXPECT_TRUE(done);
  co_return RealClock().Now() - begin;
}

// Says how fast; how fast it should be depends on the device.
TEST_P(VerbsDeviceTest, ItIsAsFastAsIntoHostMemory) {
  constexpr size_t kAtOnce = 16;
  std::vector<std::byte> source(kBufferSize, kFromServer);
  auto registered = server().Register(source.data(), source.size());
  ASSERT_TRUE(registered.ok()) << registered.status();
  Listen([&](CallPtr call) -> Task<void> {
    return [](std::span<const std::byte> out, CallPtr call) -> Task<void> {
      EXPECT_EQ(co_await call->Put(0, std::span(&out, 1)), OkStatus());
      (void)co_await call->Reply(std::string());
    }(source, std::move(call));
  });
  auto peer = Connect();
  auto device = std::make_shared<FakeDevice>(kAtOnce * kBufferSize);
  std::vector<std::byte> memory(kAtOnce * kBufferSize);
  auto into_host = Register(memory);
  auto into_device = client().RegisterDevice(device, device->data(), memory.size());
  ASSERT_TRUE(into_device.ok()) << into_device.status();
  Duration host = Duration::max(), gpu = Duration::max();
  for (int round = 0; round < 4; ++round) {  // the first registers
    host = std::min(host, Run(PutAtOnce(peer, into_host)));
    gpu = std::min(gpu, Run(PutAtOnce(peer, *into_device)));
  }
  const auto seconds = [](Duration duration) { return std::chrono::duration<double>(duration).count(); };
  std::printf("puts of 1 MiB, 16 at once: %.0f MB/s into host memory, into a device's %.3f of that\n",
              1e-6 * static_cast<double>(memory.size()) / seconds(host), seconds(host) / seconds(gpu));
  EXPECT_TRUE(std::equal(memory.begin(), memory.end(), device->alias().begin()));
}

INSTANTIATE_TEST_SUITE_P(Device, VerbsDeviceTest, ::testing::ValuesIn(VerbsKinds()),
                         [](const auto& info) { return info.param.name; });

// Asks for behaviour that only a made-up device can show.
class FakeVerbsDeviceTest : public VerbsDeviceTest {};

TEST_P(FakeVerbsDeviceTest, ARefusalSaysWhyAndLeavesTheConnection) {
  FakeRdma::Current()->RefuseDmaBufs(EPROTONOSUPPORT);
  Listen(PutOnce);
  auto peer = Connect();
  const Status status = Call(*peer, "", CallMemory::kPutTarget, Whole()).status();
  EXPECT_EQ(ToErrno(status), ENOTSUP) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("fake0 cannot write into fake:0"));
  EXPECT_TRUE(All(kCanary));
  std::vector<std::byte> memory(1000);
  EXPECT_TRUE(Call(*peer, "", CallMemory::kPutTarget, TransportTest::Whole(memory)).ok());
}

TEST_P(FakeVerbsDeviceTest, ADeviceThatGoesTakesTheRegistrationsAlong) {
  FakeRdma& rdma = *FakeRdma::Current();
  Listen(PutOnce);
  auto peer = Connect();
  ASSERT_TRUE(Call(*peer, "", CallMemory::kPutTarget, Whole()).ok());
  rdma.Remove();
  ASSERT_TRUE(Eventually([&] { return rdma.open_contexts() == 0; }));
  rdma.Restore();
  Fill(kCanary);
  ASSERT_TRUE(Call(*peer, "", CallMemory::kPutTarget, Whole()).ok());
  EXPECT_TRUE(All(kFromServer));
}

INSTANTIATE_TEST_SUITE_P(Device, FakeVerbsDeviceTest, ::testing::ValuesIn(FakeVerbsKinds()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace nacre::verbs
