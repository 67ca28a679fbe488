// Which path bytes take into a device's memory where RDMA is the chosen one: RDMA if it reaches the memory,
// else a socket and host memory, with the reason told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/transport/fake_device.h"
#include "tests/transport/transport_fixture.h"
#include "tests/transport/verbs/fake_rdma.h"
#include "transport/select/select_transport.h"
#include "transport/verbs/rdma_candidate.h"

namespace nacre {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr size_t kBytes = 256 << 10;

class RdmaOrTcpSetup : public TransportSetup {
 public:
  std::unique_ptr<Transport> Make(Executor executor) override {
    SelectOptions options;
    options.candidates.push_back(MakeRdmaCandidate(executor, RealClock(), {}));
    return MakeSelectTransport(std::move(executor), RealClock(), std::move(options));
  }
  std::string ListenAddress() override { return "127.0.0.1:0"; }

 private:
  const verbs::FakeRdma device_;
};

Task<void> PutSevens(CallPtr call) {
  std::vector<std::byte> data(call->memory_size(), std::byte{7});
  const std::span<const std::byte> out(data);
  EXPECT_EQ(co_await call->Put(0, std::span(&out, 1)), OkStatus());
  (void)co_await call->Reply(std::string());
}

class DevicePathTest : public TransportTest {
 protected:
  void SetUp() override {
    TransportTest::SetUp();
    Listen(PutSevens);
    peer_ = Connect();
  }
  void TearDown() override {
    peer_.reset();
    TransportTest::TearDown();
  }

  std::shared_ptr<MemoryRegion> Buffer(size_t offset, size_t size) {
    auto region = client().RegisterDevice(device_, device_->data() + offset, size);
    EXPECT_TRUE(region.ok()) << region.status();
    return *region;
  }
  // The path that a put into all of it took.
  std::string PathOfPut(const std::shared_ptr<MemoryRegion>& region) {
    const auto memory = device_->alias().subspan(region->data() - device_->data(), region->size());
    std::fill(memory.begin(), memory.end(), std::byte{0});
    auto reply = Call(*peer_, "", CallMemory::kPutTarget, {{region, 0, region->size()}});
    EXPECT_TRUE(reply.ok()) << reply.status();
    EXPECT_EQ(std::count(memory.begin(), memory.end(), std::byte{7}), std::ssize(memory));
    return peer_->PathFor(*region);
  }

  const std::shared_ptr<FakeDevice> device_ = std::make_shared<FakeDevice>(kBytes);
  std::shared_ptr<Peer> peer_;
};

TEST_P(DevicePathTest, RdmaWhereItReachesTheMemory) {
  auto region = Buffer(100, 5000);
  EXPECT_EQ(PathOfPut(region), "rdma+gpu");
  EXPECT_EQ(peer_->path().path, "rdma");
  EXPECT_THAT(peer_->path().reason, Not(HasSubstr("host memory")));
  std::vector<std::byte> host(100);
  EXPECT_EQ(peer_->PathFor(*Register(host)), "rdma");
}

TEST_P(DevicePathTest, HostMemoryWhereItDoesNot) {
  device_->FailExports(ErrnoError(ENOTSUP, "no open modules"));
  auto region = Buffer(100, 5000);
  EXPECT_EQ(PathOfPut(region), "tcp+staging");
  EXPECT_EQ(peer_->path().path, "rdma");
  EXPECT_THAT(peer_->path().reason,
              HasSubstr("to fake:0 over tcp and host memory: RDMA device fake0 cannot write into fake:0: "
                        "dma-buf: no open modules; peer memory: nothing is loaded"));
  std::vector<std::byte> host(100);
  ASSERT_TRUE(Call(*peer_, "", CallMemory::kPutTarget, Whole(host)).ok());
  EXPECT_EQ(host, std::vector<std::byte>(100, std::byte{7}));
}

TEST_P(DevicePathTest, EachBufferHasItsOwn) {
  device_->SetRdmaBudget(128 << 10);  // it may begin in the middle of a page
  auto small = Buffer(0, 64 << 10), large = Buffer(64 << 10, 192 << 10);
  EXPECT_EQ(PathOfPut(large), "tcp+staging");
  EXPECT_THAT(peer_->path().reason, HasSubstr("use smaller buffers"));
  EXPECT_EQ(PathOfPut(small), "rdma+gpu");
  EXPECT_EQ(peer_->PathFor(*large), "tcp+staging");
}

INSTANTIATE_TEST_SUITE_P(Path, DevicePathTest,
                         ::testing::Values(TransportKind{
                             "FakeVerbsOrTcp", [] { return std::make_unique<RdmaOrTcpSetup>(); }, 3}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace nacre
