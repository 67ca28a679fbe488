// What devices and their drivers refuse, lose or take long for, without failing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <boost/asio/post.hpp>
#include <functional>

#include "common/metrics.h"
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

constexpr size_t kSize = 100'000;

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

TransportKind Kind(const char* name, FakeRdma::Traits traits, int threads, bool path = false) {
  return {name, [=] { return std::make_unique<FaultySetup>(traits, path); }, threads};
}

Task<void> Fill(CallPtr call) {
  Bytes data(call->memory_size(), std::byte{0x77});
  const std::span<const std::byte> out(data);
  if (call->memory_kind() == CallMemory::kPutTarget) (void)co_await call->Put(0, std::span(&out, 1));
  (void)co_await call->Reply(std::string());
}

std::string NameOf(const ::testing::TestParamInfo<TransportKind>& info) { return info.param.name; }

// --- receives that a queue pair takes along ---

class LostReceivesTest : public TransportTest {};

// 19 are posted for a connection: without others in their place the twentieth would find none.
TEST_P(LostReceivesTest, AreReplaced) {
  constexpr int kOfAConnection = 19, kRounds = 4, kConnections = 15;
  constexpr int kSlabs = 2;  // of 64 message buffers, one for the client and one for the server
  const FakeRdma& device = *FakeRdma::Current();
  Listen(Fill);
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

INSTANTIATE_TEST_SUITE_P(Device, LostReceivesTest,
                         ::testing::Values(Kind("Silent",
                                                {.last_receive_events = false, .loses_receives = true}, 3)),
                         NameOf);

}  // namespace
}  // namespace nacre::verbs
