// Which path bytes take into a device's memory where RDMA is the chosen one: RDMA if it reaches the memory,
// else RDMA into host memory and a copy, else a socket and host memory; with the reason told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "common/random.h"
#include "tests/transport/fake_device.h"
#include "tests/transport/transport_fixture.h"
#include "tests/transport/verbs/fake_rdma.h"
#include "transport/select/select_transport.h"
#include "transport/verbs/rdma_candidate.h"

namespace nacre {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr size_t kBytes = 256 << 10;

class RdmaOrTcpSetup : public TransportSetup {
 public:
  explicit RdmaOrTcpSetup(bool fall_back) : fall_back_(fall_back) {}
  std::unique_ptr<Transport> Make(Executor executor) override {
    SelectOptions options;
    options.fall_back = fall_back_;
    options.candidates.push_back(MakeRdmaCandidate(executor, RealClock(), {}));
    return MakeSelectTransport(std::move(executor), RealClock(), std::move(options));
  }
  std::string ListenAddress() override { return "127.0.0.1:0"; }

 private:
  const bool fall_back_;
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
  EXPECT_EQ(PathOfPut(region), "rdma+staging");
  EXPECT_EQ(peer_->path().path, "rdma");
  EXPECT_THAT(peer_->path().reason,
              HasSubstr("to fake:0 over rdma and host memory: RDMA device fake0 cannot write into fake:0: "
                        "dma-buf: no open modules; peer memory: nothing is loaded"));
  std::vector<std::byte> host(100);
  ASSERT_TRUE(Call(*peer_, "", CallMemory::kPutTarget, Whole(host)).ok());
  EXPECT_EQ(host, std::vector<std::byte>(100, std::byte{7}));
}

TEST_P(DevicePathTest, EachBufferHasItsOwn) {
  device_->SetRdmaBudget(128 << 10);  // it may begin in the middle of a page
  auto small = Buffer(0, 64 << 10), large = Buffer(64 << 10, 192 << 10);
  EXPECT_EQ(PathOfPut(large), "rdma+staging");
  EXPECT_THAT(peer_->path().reason, HasSubstr("use smaller buffers"));
  EXPECT_EQ(PathOfPut(small), "rdma+gpu");
  EXPECT_EQ(peer_->PathFor(*large), "rdma+staging");
}

TEST_P(DevicePathTest, TcpWhereStagingBuffersAreTooFew) {
  if (!GetParam().name.ends_with("OrTcp")) GTEST_SKIP() << "nothing but RDMA may be used";
  device_->FailExports(ErrnoError(ENOTSUP, "no open modules"));
  device_->SetStagingBytes(20'000);
  auto region = Buffer(0, 20'001);
  EXPECT_EQ(PathOfPut(region), "tcp+staging");
  EXPECT_THAT(peer_->path().reason,
              AllOf(HasSubstr("to fake:0 over tcp and host memory: "), HasSubstr("no open modules"),
                    HasSubstr("20001 bytes of fake:0's memory does not fit into the 20000 bytes")));
}

TEST_P(DevicePathTest, ARefusalOfEveryWayNamesEach) {
  if (GetParam().name.ends_with("OrTcp")) GTEST_SKIP() << "it would go over TCP";
  device_->FailExports(ErrnoError(ENOTSUP, "no open modules"));
  device_->SetStagingBytes(100);
  auto region = Buffer(0, 101);
  const Status refused = Call(*peer_, "", CallMemory::kPutTarget, {{region, 0, 101}}).status();
  EXPECT_EQ(ToErrno(refused), ENOTSUP);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("no open modules"), HasSubstr("does not fit into the 100 bytes")));
}

// Spans in any order, some empty, cut anywhere by the staging buffers.
TEST_P(DevicePathTest, StagedBytesLandWhereTheyBelong) {
  device_->FailExports(ErrnoError(ENOTSUP, "no open modules"));
  auto region = Buffer(0, kBytes);
  SeededRandom random(5);
  for (int round = 0; round < 20; ++round) {
    std::vector<std::byte> expected(kBytes, std::byte{1});
    std::fill(device_->alias().begin(), device_->alias().end(), std::byte{1});
    std::vector<MemorySpan> spans;
    for (size_t at = random.Below(500); at + 30'000 < kBytes; at += 1 + random.Below(9000)) {
      const size_t length = random.Below(30'000);
      spans.insert(spans.begin(), {region, at, length});
      std::fill_n(expected.begin() + static_cast<ptrdiff_t>(at), length, std::byte{7});
      at += length;
    }
    ASSERT_TRUE(Call(*peer_, "", CallMemory::kPutTarget, spans).ok());
    ASSERT_TRUE(std::equal(expected.begin(), expected.end(), device_->alias().begin())) << round;
  }
  EXPECT_EQ(device_->staging_in_use(), 0u);
  EXPECT_EQ(peer_->PathFor(*region), "rdma+staging");
}

TEST_P(DevicePathTest, AStagedCallIsOverWhenItsCopyIs) {
  device_->FailExports(ErrnoError(ENOTSUP, "no open modules"));
  auto region = Buffer(0, kBytes);
  device_->Hold();
  std::atomic<bool> done = false;
  std::thread caller([&] {
    EXPECT_TRUE(Call(*peer_, "", CallMemory::kPutTarget, {{region, 0, kBytes}}).ok());
    done = true;
  });
  EXPECT_TRUE(Eventually([&] { return device_->copies_waiting() == 1; }));
  EXPECT_FALSE(done);
  EXPECT_GT(device_->staging_in_use(), 0u);
  device_->Resume();
  caller.join();
  EXPECT_EQ(device_->alias()[kBytes - 1], std::byte{7});
  EXPECT_EQ(device_->staging_in_use(), 0u);
}

TEST_P(DevicePathTest, AStagedCallThatFailsLeavesTheMemory) {
  device_->FailExports(ErrnoError(ENOTSUP, "no open modules"));
  auto region = Buffer(0, 5000);
  ASSERT_EQ(PathOfPut(region), "rdma+staging");
  std::fill(device_->alias().begin(), device_->alias().end(), std::byte{1});
  device_->FailCopies(ErrnoError(EIO, "the engine stalls"));
  EXPECT_EQ(ToErrno(Call(*peer_, "", CallMemory::kPutTarget, {{region, 0, 5000}}).status()), EIO);
  StopListening();
  const Duration soon = std::chrono::milliseconds(200);
  EXPECT_FALSE(Call(*peer_, "", CallMemory::kPutTarget, {{region, 0, 5000}}, soon).ok());
  EXPECT_EQ(std::count(device_->alias().begin(), device_->alias().end(), std::byte{1}), ptrdiff_t{kBytes});
  EXPECT_EQ(device_->staging_in_use(), 0u);
}

INSTANTIATE_TEST_SUITE_P(
    Path, DevicePathTest,
    ::testing::Values(
        TransportKind{"FakeVerbsOrTcp", [] { return std::make_unique<RdmaOrTcpSetup>(true); }, 3},
        TransportKind{"FakeVerbsAlone", [] { return std::make_unique<RdmaOrTcpSetup>(false); }, 3}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace nacre
