// A GPU's memory over the verbs transport: what a server puts lands in it by itself and is summed up there.
// With the fake driver, whose memory kills who touches it with the CPU, and a made-up RDMA device or this
// machine's own (tests/rdma/transport.sh), to which dma-bufs are added.
#include <gmock/gmock.h>

#include "common/crc32c.h"
#include "common/metrics.h"
#include "tests/gpu/gpu_fixture.h"
#include "tests/transport/verbs/emulated_dma_bufs.h"
#include "tests/transport/verbs/fake_rdma.h"
#include "transport/verbs/verbs_transport.h"

namespace nacre::gpu {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

constexpr size_t kPutBytes = 300'001, kPutAt = 5'003;

// Puts bytes that tell where they belong.
Task<void> PutPattern(std::shared_ptr<IncomingCall> call) {
  std::vector<std::byte> data(call->memory_size());
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * 2654435761u >> 11);
  const std::span<const std::byte> out(data);
  EXPECT_EQ(co_await call->Put(0, std::span(&out, 1)), OkStatus());
  (void)co_await call->Reply(std::string());
}

enum class Nic { kMadeUp, kOwn };

class GpuRdmaTest : public GpuFixture, public testing::WithParamInterface<Nic> {
 protected:
  void SetUp() override {
    if (GetParam() == Nic::kMadeUp) {
      made_up_.emplace();
    } else {
      if (Status status = LookForRdma(); !status.ok()) GTEST_SKIP() << status.message();
      emulated_.emplace();
    }
    Open(Driver::kFake);
    transport_ = MakeVerbsTransport(runtime_.executor(), RealClock());
    auto listener = transport_->Listen("127.0.0.1:0", PutPattern);
    ASSERT_TRUE(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
    auto peer = transport_->Connect(listener_->address());
    ASSERT_TRUE(peer.ok()) << peer.status();
    peer_ = *peer;
  }

  StatusOr<std::string> PutInto(const std::shared_ptr<MemoryRegion>& region) {
    CallRequest request{"", CallMemory::kPutTarget, {{region, kPutAt, kPutBytes}}};
    return Run(peer_->Call(std::move(request), 20s));
  }
  std::shared_ptr<MemoryRegion> Register(const DeviceBuffer& buffer) {
    auto region = transport_->RegisterDevice(device_, buffer.data(), buffer.size());
    EXPECT_TRUE(region.ok()) << region.status();
    return *region;
  }

  std::optional<verbs::FakeRdma> made_up_;
  std::optional<verbs::EmulatedDmaBufs> emulated_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Listener> listener_;
  std::shared_ptr<Peer> peer_;
};

TEST_P(GpuRdmaTest, BytesLandAndAreSummedUpThere) {
  DeviceBuffer buffer(device_, 1 << 20);
  std::vector<std::byte> expected(buffer.size(), std::byte{0x5a});
  Write(buffer, expected);
  auto region = Register(buffer);
  auto reply = PutInto(region);
  ASSERT_TRUE(reply.ok()) << reply.status();
  for (size_t i = 0; i < kPutBytes; ++i) expected[kPutAt + i] = static_cast<std::byte>(i * 2654435761u >> 11);
  auto sums = Run(device_->Crc32c({buffer.Piece(kPutAt, kPutBytes)}));
  ASSERT_TRUE(sums.ok()) << sums.status();
  EXPECT_EQ(sums->front(), Crc32c(std::span(expected).subspan(kPutAt, kPutBytes)));
  EXPECT_TRUE(Read(buffer) == expected);
}

TEST_P(GpuRdmaTest, FreedMemoryIsNotWrittenInto) {
  auto buffer = std::make_unique<DeviceBuffer>(device_, 1 << 20);
  auto region = Register(*buffer);
  ASSERT_TRUE(PutInto(region).ok());
  buffer->Free();
  EXPECT_EQ(ToErrno(PutInto(region).status()), EFAULT);
  DeviceBuffer again(device_, 1 << 20);
  ASSERT_EQ(again.data(), region->data());
  Write(again, std::vector<std::byte>(again.size()));
  Counter& stale = GetCounter("transport.verbs.device.stale");
  const int64_t before = stale.Get();
  ASSERT_TRUE(PutInto(region).ok());
  EXPECT_EQ(stale.Get() - before, 1);
  EXPECT_EQ(Read(again)[kPutAt + 1], static_cast<std::byte>(2654435761u >> 11));
}

TEST_P(GpuRdmaTest, ARefusalNamesTheDriversReason) {
  WithKnobs with("export_error=801", "export_error=0");
  DeviceBuffer buffer(device_, 1 << 20);
  const Status status = PutInto(Register(buffer)).status();
  EXPECT_EQ(ToErrno(status), ENOTSUP);
  EXPECT_THAT(std::string(status.message()), HasSubstr("CUDA_ERROR_NOT_SUPPORTED (801)"));
}

INSTANTIATE_TEST_SUITE_P(, GpuRdmaTest, testing::Values(Nic::kMadeUp, Nic::kOwn), [](const auto& info) {
  return info.param == Nic::kMadeUp ? "MadeUpNic" : "OwnNic";
});

}  // namespace
}  // namespace nacre::gpu
