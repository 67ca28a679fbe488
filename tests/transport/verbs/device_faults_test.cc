// Operations that devices and their drivers refuse, lose or take long for, without failing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <boost/asio/post.hpp>
#include <functional>

#include "common/metrics.h"
#include "tests/transport/fake_device.h"
#include "tests/transport/transport_fixture.h"
#include "tests/transport/verbs/fake_rdma.h"
#include "transport/select/select_transport.h"
#include "transport/shared_memory.h"
#include "transport/verbs/rdma_candidate.h"
#include "transport/verbs/verbs_transport.h"

namespace nacre::verbs {
namespace {

using Bytes = std::vector<std::byte>;
using ::testing::HasSubstr;

constexpr size_t kFaultySize = 100'000;

class FaultySetup : public TransportSetup {
 public:
  explicit FaultySetup(FakeRdma::Traits traits, bool path) : device_(traits), path_(path) {}
  std::unique_ptr<Transport> Make(Executor executor) override {
    if (!path_) return MakeVerbsTransport(std::move(executor), RealClock());
    SelectOptions options;
    options.candidates.push_back(MakeRdmaCandidate(executor, RealClock(), {}));
    return MakeSelectTransport(std::move(executor), RealClock(), std::move(options));
  }
  std::string ListenAddress() override { return "127.0.0.1:0"; }

 private:
  const FakeRdma device_;
  const bool path_;
};

TransportKind FaultyKind(const char* name, FakeRdma::Traits traits, int threads, bool path = false) {
  return {name, [=] { return std::make_unique<FaultySetup>(traits, path); }, threads};
}

Task<void> FillIfAsked(CallPtr call) {
  Bytes data(call->memory_size(), std::byte{0x77});
  const std::span<const std::byte> out(data);
  if (call->memory_kind() == CallMemory::kPutTarget) (void)co_await call->Put(0, std::span(&out, 1));
  (void)co_await call->Reply(std::string());
}

std::string NameOfKind(const ::testing::TestParamInfo<TransportKind>& info) { return info.param.name; }

// --- receives that a queue pair takes along ---

class LostReceivesTest : public TransportTest {};

// 19 are posted for a connection: without others in their place the twentieth would find none.
TEST_P(LostReceivesTest, AreReplaced) {
  constexpr int kOfAConnection = 19, kRounds = 4, kConnections = 15;
  constexpr int kSlabs = 2;  // of 64 message buffers, one for the client and one for the server
  const FakeRdma& device = *FakeRdma::Current();
  Listen(FillIfAsked);
  const int64_t before = GetCounter("transport.verbs.receives_lost").Get();
  for (int round = 0; round < kRounds; ++round) {
    for (int i = 0; i < kConnections; ++i) {
      auto peer = Connect();
      ASSERT_TRUE(Call(*peer, "", CallMemory::kNone, {}).ok()) << "connection " << i << " of round " << round;
      peer.reset();
      ASSERT_TRUE(Eventually([&] { return device.queue_pairs() == 0; }));
    }
    EXPECT_LT(device.receives(), 2 * kOfAConnection);
    auto peer = Connect();
    ASSERT_TRUE(Call(*peer, "").ok());  // overtakes what was lost
    ASSERT_TRUE(Eventually([&] { return device.receives() == 2 * kOfAConnection; })) << device.receives();
    peer.reset();
    ASSERT_TRUE(Eventually([&] { return device.queue_pairs() == 0; }));
  }
  EXPECT_GE(GetCounter("transport.verbs.receives_lost").Get() - before, 2 * kRounds * kConnections);
  EXPECT_EQ(device.regions(), kSlabs) << "the buffers that were lost are not used again";
}

INSTANTIATE_TEST_SUITE_P(
    Device, LostReceivesTest,
    ::testing::Values(FaultyKind("Silent", {.last_receive_events = false, .loses_receives = true}, 3)),
    NameOfKind);

// --- windows that a driver refuses to bind ---

class RefusedBindingTest : public TransportTest {
 protected:
  void SetUp() override {
    TransportTest::SetUp();
    Listen(FillIfAsked);
    peer_ = Connect();
    ASSERT_TRUE(Call(*peer_, "").ok());
    small_ = Register(small_memory_);
    large_ = Register(large_memory_);
    connections_ = Connections();
  }
  void TearDown() override {
    EXPECT_EQ(Connections(), connections_) << "the connection was lost";
    EXPECT_EQ(FakeRdma::Current()->bound_windows(), 0);
    small_.reset();
    large_.reset();
    peer_.reset();
    TransportTest::TearDown();
  }
  static int64_t Connections() { return GetCounter("transport.verbs.client.connections").Get(); }

  Status Small() { return Call(*peer_, "", CallMemory::kPutTarget, {{small_, 0, kFaultySize / 4}}).status(); }
  // The small one's window is bound before the large one's is refused, or not.
  Status Both() {
    return Call(*peer_, "", CallMemory::kPutTarget, {{small_, 0, kFaultySize / 4}, {large_, 0, kFaultySize}})
        .status();
  }

  Bytes small_memory_ = Bytes(kFaultySize / 4), large_memory_ = Bytes(kFaultySize);
  std::shared_ptr<MemoryRegion> small_, large_;
  std::shared_ptr<Peer> peer_;
  int64_t connections_ = 0;
};

// More often than a link has windows.
TEST_P(RefusedBindingTest, FailsTheCallAndNotTheConnection) {
  for (int error : {EOPNOTSUPP, EINVAL}) {
    FakeRdma::Current()->RefuseBindings(error, kFaultySize / 2);
    for (int i = 0; i < 100; ++i) {
      const Status status = Both();
      ASSERT_EQ(ToErrno(status), ENOTSUP) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("binds no window to 100000 bytes"));
      ASSERT_EQ(Small(), OkStatus());
    }
    FakeRdma::Current()->RefuseBindings(0, 0);
    EXPECT_EQ(Both(), OkStatus());
  }
}

// Those that come together wait for each other's windows, and some for credits.
TEST_P(RefusedBindingTest, HoldsUpNoneOfManyCalls) {
  FakeRdma::Current()->RefuseBindings(EOPNOTSUPP, kFaultySize / 2);
  auto all = [](std::function<CallRequest(int)> request, std::shared_ptr<Peer> peer) -> Task<int> {
    std::vector<Task<bool>> calls;
    for (int i = 0; i < 200; ++i) {
      calls.push_back([](CallRequest request, std::shared_ptr<Peer> peer, bool small) -> Task<bool> {
        auto reply = co_await peer->Call(std::move(request), 20s);
        co_return small ? reply.ok() : ToErrno(reply.status()) == ENOTSUP;
      }(request(i), peer, i % 2 == 0));
    }
    std::vector<bool> done = co_await WhenAll(std::move(calls));
    co_return static_cast<int>(std::count(done.begin(), done.end(), true));
  };
  auto request = [this](int i) {
    CallRequest request{"", CallMemory::kPutTarget, {}};
    request.memory.push_back({small_, 0, kFaultySize / 4});
    if (i % 2 != 0) request.memory.push_back({large_, 0, kFaultySize});
    return request;
  };
  EXPECT_EQ(Run(all(request, peer_)), 200);
}

INSTANTIATE_TEST_SUITE_P(Device, RefusedBindingTest,
                         ::testing::Values(FaultyKind("OneThread", {}, 1), FaultyKind("Threads", {}, 3)),
                         NameOfKind);

class RefusedBindingPathTest : public RefusedBindingTest {};

TEST_P(RefusedBindingPathTest, SendsTheCallAnotherWay) {
  FakeRdma::Current()->RefuseBindings(EOPNOTSUPP, kFaultySize / 2);
  for (int i = 0; i < 10; ++i) ASSERT_EQ(Both(), OkStatus());
  EXPECT_EQ(large_memory_.back(), std::byte{0x77});
  EXPECT_EQ(peer_->path().path, "rdma");
  EXPECT_THAT(peer_->path().reason, HasSubstr("binds no window"));
}

INSTANTIATE_TEST_SUITE_P(Device, RefusedBindingPathTest, ::testing::Values(FaultyKind("Path", {}, 3, true)),
                         NameOfKind);

// --- memory that takes long to register ---

class SlowRegistrationTest : public TransportTest {
 protected:
  bool ExecutorRuns() {
    std::atomic<bool> ran = false;
    asio::post(executor(), [&ran] { ran = true; });
    return Eventually([&] { return ran.load(); });
  }
  std::shared_ptr<SharedMemory> shared_ = *SharedMemory::Create("slow", kFaultySize);
};

TEST_P(SlowRegistrationTest, AServersPoolIsRegisteredBeforeTheFirstClientComes) {
  const auto region = server().RegisterShared(shared_);
  ASSERT_TRUE(region.ok());
  FakeRdma::Current()->HoldRegistration(shared_->data());
  Listen(FillIfAsked);
  ASSERT_TRUE(Eventually([] { return FakeRdma::Current()->holds(); }));
  EXPECT_TRUE(ExecutorRuns());
  auto peer = Connect();
  std::atomic<int> answered = 0;
  Spawn(executor(), peer->Call(CallRequest{}, 20s),
        [&](const StatusOr<std::string>& reply) { answered = reply.ok() ? 1 : -1; });
  EXPECT_TRUE(ExecutorRuns());
  EXPECT_EQ(answered, 0);  // it would find the pool not to be registered yet
  FakeRdma::Current()->HoldRegistration(nullptr);
  EXPECT_TRUE(Eventually([&] { return answered == 1; }));
}

TEST_P(SlowRegistrationTest, AClientsCacheHoldsUpNobodyElse) {
  const auto region = client().RegisterShared(shared_);
  ASSERT_TRUE(region.ok());
  FakeRdma::Current()->HoldRegistration(shared_->data());
  Listen(FillIfAsked);
  auto peer = Connect();
  std::atomic<int> answered = 0;
  Spawn(executor(), peer->Call(CallRequest{}, 20s),
        [&](const StatusOr<std::string>& reply) { answered = reply.ok() ? 1 : -1; });
  ASSERT_TRUE(Eventually([] { return FakeRdma::Current()->holds(); }));
  EXPECT_TRUE(ExecutorRuns());
  FakeRdma::Current()->HoldRegistration(nullptr);
  EXPECT_TRUE(Eventually([&] { return answered == 1; }));
}

// A call whose memory has yet to be registered waits for that alone: neither its thread nor the rail's budget
// does.
class SlowMemoryTest : public SlowRegistrationTest {
 protected:
  void WaitBehind(std::shared_ptr<MemoryRegion> region, const void* held) {
    Listen(FillIfAsked);
    auto peer = Connect();
    ASSERT_TRUE(Call(*peer, "connects").ok());
    FakeRdma::Current()->HoldRegistration(held);
    std::atomic<int> answered = 0;
    CallRequest request{"", CallMemory::kPutTarget, {}};
    request.memory.push_back({region, 0, region->size()});
    Spawn(executor(), peer->Call(request, 20s),
          [&](const StatusOr<std::string>& reply) { answered = reply.ok() ? 1 : -1; });
    ASSERT_TRUE(Eventually([] { return FakeRdma::Current()->holds(); }));
    EXPECT_TRUE(Call(*peer, "goes on").ok());
    EXPECT_TRUE(
        absl::IsDeadlineExceeded(Call(*peer, "", CallMemory::kPutTarget, request.memory, 50ms).status()));
    EXPECT_TRUE(Call(*peer, "goes on").ok());
    EXPECT_EQ(answered, 0);
    FakeRdma::Current()->HoldRegistration(nullptr);
    EXPECT_TRUE(Eventually([&] { return answered == 1; }));
  }
};

TEST_P(SlowMemoryTest, OfAnApplication) {
  const auto region = client().Register(shared_->data(), kFaultySize);
  ASSERT_TRUE(region.ok());
  WaitBehind(*region, shared_->data());
}

TEST_P(SlowMemoryTest, OfADevice) {
  const auto device = std::make_shared<FakeDevice>(kFaultySize);
  const auto region = client().RegisterDevice(device, device->data(), kFaultySize);
  ASSERT_TRUE(region.ok());
  WaitBehind(*region, device->data());
}

INSTANTIATE_TEST_SUITE_P(Device, SlowMemoryTest, ::testing::Values(FaultyKind("OneThread", {}, 1)),
                         NameOfKind);
INSTANTIATE_TEST_SUITE_P(Device, SlowRegistrationTest, ::testing::Values(FaultyKind("OneThread", {}, 1)),
                         NameOfKind);

}  // namespace
}  // namespace nacre::verbs
