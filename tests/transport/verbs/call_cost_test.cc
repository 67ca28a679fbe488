// Prints the cost of a small call in the code of both sides, the made-up device's part included. All run on
// one thread where the name says no other number. NACRE_CALLS sets how many calls are made; the difference
// between callgrind's counts for two such numbers is the cost of the calls between.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "tests/transport/transport_fixture.h"

namespace nacre::verbs {
namespace {

constexpr size_t kSize = 4096;
constexpr size_t kBodySize = 40;  // about what requests and replies of an OSS take

size_t Calls() {
  const char* wanted = std::getenv("NACRE_CALLS");
  return wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : 2000;
}

class CallCostTest : public TransportTest {
 protected:
  void SetUp() override {
    TransportTest::SetUp();
    auto region = server().Register(own_.data(), own_.size());
    ASSERT_TRUE(region.ok()) << region.status();
    own_region_ = *std::move(region);
    Listen([this](CallPtr call) { return Serve(std::move(call), own_); });
    peer_ = Connect();
  }
  void TearDown() override {
    peer_.reset();
    own_region_.reset();
    TransportTest::TearDown();
  }

  static Task<void> Serve(CallPtr call, std::span<const std::byte> own) {
    Status status;
    if (call->memory_size() > 0) status = co_await call->Lend(0, std::span(&own, 1), nullptr);
    EXPECT_TRUE(status.ok()) << status;
    (void)co_await call->Reply(std::string(kBodySize, 'r'));
  }

  static Task<Status> CallOnAndOn(std::shared_ptr<Peer> peer, std::vector<MemorySpan> memory) {
    for (size_t i = 0; i < Calls(); ++i) {
      CallRequest request;
      request.body.assign(kBodySize, 'c');
      request.kind = memory.empty() ? CallMemory::kNone : CallMemory::kPutTarget;
      request.memory = memory;
      StatusOr<std::string> reply = co_await peer->Call(std::move(request), 30s);
      if (!reply.ok()) co_return reply.status();
    }
    co_return OkStatus();
  }

  void Measure(const char* name, std::vector<MemorySpan> memory) {
    const Duration begin = RealClock().Now();
    const Status status = Run(CallOnAndOn(peer_, std::move(memory)));
    ASSERT_TRUE(status.ok()) << status;
    const std::chrono::duration<double, std::micro> each = RealClock().Now() - begin;
    std::printf("%s: %.1f us each\n", name, each.count() / static_cast<double>(Calls()));
  }

  std::vector<std::byte> own_ = std::vector<std::byte>(kSize, std::byte{7});
  std::shared_ptr<MemoryRegion> own_region_;
  std::shared_ptr<Peer> peer_;
};

TEST_P(CallCostTest, Echo) { Measure("a call without memory", {}); }

TEST_P(CallCostTest, Put4KiB) {
  std::vector<std::byte> memory(kSize);
  const std::shared_ptr<MemoryRegion> region = Register(memory);
  Measure("a put of 4 KiB", {{region, 0, kSize}});
  EXPECT_EQ(memory, own_);
}

INSTANTIATE_TEST_SUITE_P(Cost, CallCostTest, ::testing::ValuesIn(FakeVerbsKinds()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace nacre::verbs
