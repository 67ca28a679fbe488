// Several rails between two processes, over devices that are made up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <set>

#include "common/metrics.h"
#include "tests/transport/fake_device.h"
#include "tests/transport/transport_fixture.h"
#include "tests/transport/verbs/fake_rdma.h"
#include "transport/select/select_transport.h"
#include "transport/verbs/rail_plan.h"
#include "transport/verbs/rdma_candidate.h"
#include "transport/verbs/verbs_transport.h"

namespace nacre::verbs {
namespace {

using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

// Two devices.
class RailsSetup : public TransportSetup {
 public:
  explicit RailsSetup(FakeRdma::Traits traits, int calls = 256) : device_(traits), calls_(calls) {}
  std::unique_ptr<Transport> Make(Executor executor) override {
    VerbsOptions options;
    options.control.calls_per_connection = calls_;
    return MakeVerbsTransport(std::move(executor), RealClock(), std::move(options));
  }
  std::string ListenAddress() override { return "127.0.0.1:0"; }

 private:
  const FakeRdma device_;
  const int calls_;
};

// As what the choice of path comes to.
class RailsPathSetup : public RailsSetup {
 public:
  using RailsSetup::RailsSetup;
  std::unique_ptr<Transport> Make(Executor executor) override {
    SelectOptions options;
    options.candidates.push_back(MakeRdmaCandidate(executor, RealClock(), {}));
    return MakeSelectTransport(std::move(executor), RealClock(), std::move(options));
  }
};

template <typename Setup>
TransportKind Kind(const char* name, FakeRdma::Traits traits, int calls = 256) {
  traits.devices = 2;
  return {name, [=] { return std::make_unique<Setup>(traits, calls); }, 3};
}

Task<void> FillForReads(CallPtr call) {
  Bytes data(call->memory_size(), std::byte{0x77});
  const std::span<const std::byte> out(data);
  if (call->memory_kind() == CallMemory::kPutTarget) (void)co_await call->Put(0, std::span(&out, 1));
  (void)co_await call->Reply(std::string());
}

class RailsTest : public TransportTest {
 protected:
  static constexpr size_t kSize = 100'000;

  // The rails that are there, by the name of the device here.
  static std::multiset<std::string> Up(const Peer& peer) {
    std::multiset<std::string> up;
    for (const PathStats& stats : peer.path().stats) {
      if (!stats.rail.empty() && !stats.down) up.insert(stats.rail.substr(0, 5));
    }
    return up;
  }
  static uint64_t ReadsOver(const Peer& peer, const std::string& device) {
    uint64_t reads = 0;
    for (const PathStats& stats : peer.path().stats) {
      if (stats.rail.starts_with(device)) reads += stats.reads;
    }
    return reads;
  }

  // Calls, eight at a time, until `enough`; those that are lost are repeated as the callers of peers do.
  class Load {
   public:
    Load(RailsTest* test, std::shared_ptr<Peer> peer) : memory_(8 * kSize) {
      auto region = test->Register(memory_);
      for (size_t i = 0; i < 8; ++i) {
        Spawn(test->executor(), GoOn(this, peer, MemorySpan{region, i * kSize, kSize}), [this]() {
          if (++ended_ == 8) done_.set_value();
        });
      }
    }
    ~Load() {
      enough_ = true;
      done_.get_future().wait();
    }
    int calls() const { return calls_; }
    int lost() const { return lost_; }
    int wrong() const { return wrong_; }

   private:
    static Task<void> GoOn(Load* load, std::shared_ptr<Peer> peer, MemorySpan span) {
      while (!load->enough_) {
        std::fill_n(span.data(), kSize, std::byte{0x11});
        CallRequest request{"", CallMemory::kPutTarget, {}};
        request.memory.push_back(span);
        auto reply = co_await peer->Call(std::move(request), 20s);
        const bool good =
            std::all_of(span.data(), span.data() + kSize, [](std::byte b) { return b == std::byte{0x77}; });
        if (reply.ok() && good) ++load->calls_;
        if (reply.ok() && !good) ++load->wrong_;
        if (absl::IsUnavailable(reply.status())) ++load->lost_;
        if (!reply.ok() && !absl::IsUnavailable(reply.status())) ++load->wrong_;
      }
    }

    Bytes memory_;
    std::atomic<bool> enough_ = false;
    std::atomic<int> calls_ = 0, lost_ = 0, wrong_ = 0, ended_ = 0;
    std::promise<void> done_;
  };
};

TEST_P(RailsTest, ADeviceThatFailsLeavesTheCallsToTheOtherAndComesBack) {
  FakeRdma& device = *FakeRdma::Current();
  Listen(FillForReads);
  auto peer = Connect();
  ASSERT_TRUE(Call(*peer, "").ok());
  const size_t rails = GetParam().name == std::string("Crossed") ? 4 : 2;
  ASSERT_TRUE(Eventually([&] { return Up(*peer).size() == rails; }));
  Load load(this, peer);
  ASSERT_TRUE(Eventually([&] { return ReadsOver(*peer, "fake0") > 10 && ReadsOver(*peer, "fake1") > 10; }));
  const int64_t chosen = GetCounter("transport.verbs.client.connections").Get();
  device.Remove(1);
  device.BreakDown(1);
  ASSERT_TRUE(Eventually([&] { return device.queue_pairs(1) == 0; }));
  EXPECT_EQ(peer->path().path, "rdma");
  EXPECT_TRUE(Eventually([&] { return Up(*peer).count("fake1") == 0; }));
  const int before = load.calls();
  EXPECT_TRUE(Eventually([&] { return load.calls() > before + 100; }));
  EXPECT_EQ(GetCounter("transport.verbs.client.connections").Get(), chosen)
      << "the other rails have been made anew";
  const uint64_t reads = ReadsOver(*peer, "fake1");
  device.Restore(1);
  EXPECT_TRUE(Eventually([&] { return ReadsOver(*peer, "fake1") > reads + 10; }));
  EXPECT_EQ(load.wrong(), 0);
  EXPECT_LE(load.lost(), 8);
}

TEST_P(RailsTest, EachDeviceMayGoInItsTurn) {
  FakeRdma& device = *FakeRdma::Current();
  Listen(FillForReads);
  auto peer = Connect();
  ASSERT_TRUE(Call(*peer, "").ok());
  Load load(this, peer);
  for (int gone : {0, 1}) {
    const std::string name = "fake" + std::to_string(gone);
    ASSERT_TRUE(Eventually([&] { return Up(*peer).count("fake0") > 0 && Up(*peer).count("fake1") > 0; }));
    device.Remove(gone);  // and says nothing
    ASSERT_TRUE(Eventually([&] { return device.queue_pairs(gone) == 0; }));
    const int before = load.calls();
    EXPECT_TRUE(Eventually([&] { return load.calls() > before + 100; }));
    device.Restore(gone);
  }
  EXPECT_EQ(load.wrong(), 0);
}

TEST_P(RailsTest, WhatOneDeviceDoesNotReachGoesOverTheOther) {
  FakeRdma::Current()->RefuseDmaBufs(EOPNOTSUPP, 0);
  Listen(FillForReads);
  auto peer = Connect();
  ASSERT_TRUE(Call(*peer, "").ok());
  ASSERT_TRUE(Eventually([&] { return Up(*peer).count("fake0") > 0 && Up(*peer).count("fake1") > 0; }));
  auto device = std::make_shared<FakeDevice>(kSize);
  auto region = client().RegisterDevice(device, device->data(), kSize);
  ASSERT_TRUE(region.ok()) << region.status();
  for (int i = 0; i < 10; ++i) {
    auto reply = Call(*peer, "", CallMemory::kPutTarget, {{*region, 0, kSize}});
    ASSERT_TRUE(reply.ok()) << reply.status();
  }
  EXPECT_EQ(ReadsOver(*peer, "fake0"), 0u);
  EXPECT_EQ(ReadsOver(*peer, "fake1"), 10u);
  EXPECT_EQ(peer->PathFor(**region), "rdma+gpu");
  EXPECT_EQ(device->alias()[kSize - 1], std::byte{0x77});
}

TEST_P(RailsTest, MemoryThatCannotBeRegisteredEndsNoConnection) {
  Listen(FillForReads);
  auto peer = Connect();
  ASSERT_TRUE(Call(*peer, "").ok());
  Bytes memory(kSize);
  FakeRdma::Current()->RefuseMemory(ENOMEM);
  auto reply = Call(*peer, "", CallMemory::kPutTarget, Whole(memory));
  if (GetParam().name == std::string("Path")) {  // it has another way
    ASSERT_TRUE(reply.ok()) << reply.status();
    EXPECT_EQ(memory[kSize - 1], std::byte{0x77});
    EXPECT_THAT(peer->path().reason,
                HasSubstr("to some memory over tcp: 100000 bytes of memory cannot be registered"));
  } else {
    EXPECT_EQ(ToErrno(reply.status()), ENOTSUP) << reply.status();
    EXPECT_THAT(std::string(reply.status().message()), HasSubstr("ulimit -l"));
  }
  EXPECT_EQ(peer->path().path, "rdma");
  FakeRdma::Current()->RefuseMemory(0);
  EXPECT_TRUE(Call(*peer, "", CallMemory::kPutTarget, Whole(memory)).ok());
}

// Read-only memory, for instance: nobody but the calls that name it notices.
TEST_P(RailsTest, OneRegionThatCannotBeRegisteredHarmsNoOther) {
  Listen(FillForReads);
  Bytes bad(kSize), good(kSize);
  auto bad_spans = Whole(bad), good_spans = Whole(good);
  FakeRdma::Current()->RefuseMemory(EFAULT, bad.data());
  auto peer = Connect();  // with the memory there already
  ASSERT_TRUE(Call(*peer, "").ok());
  EXPECT_EQ(peer->path().path, "rdma");
  const bool has_other_way = GetParam().name == std::string("Path");
  EXPECT_EQ(Call(*peer, "", CallMemory::kPutTarget, bad_spans).ok(), has_other_way);
  ASSERT_TRUE(Call(*peer, "", CallMemory::kPutTarget, good_spans).ok());
  EXPECT_EQ(good[kSize - 1], std::byte{0x77});
  EXPECT_EQ(peer->path().path, "rdma");
}

// Nothing is sent over windows that cannot be bound; the reason is to be seen.
class NoBindingTest : public RailsTest {};

TEST_P(NoBindingTest, CallsTakeAnotherWay) {
  Listen(FillForReads);
  Bytes memory(kSize);
  auto peer = Connect();
  auto reply = Call(*peer, "", CallMemory::kPutTarget, Whole(memory));
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(peer->path().path, "tcp");
  EXPECT_THAT(peer->path().reason, HasSubstr("with a memory window"));
}

INSTANTIATE_TEST_SUITE_P(Device, NoBindingTest,
                         ::testing::Values(Kind<RailsPathSetup>("Path", {.binds = false})),
                         [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Device, RailsTest,
    ::testing::Values(Kind<RailsSetup>("Isolated", {.isolated = true}), Kind<RailsSetup>("Crossed", {}),
                      Kind<RailsPathSetup>("Path", {.windows = false, .isolated = true})),
    [](const auto& info) { return info.param.name; });

class CrossedRailsTest : public RailsTest {};

TEST_P(CrossedRailsTest, EachPortIsJoinedToEach) {
  Listen(FillForReads);
  auto peer = Connect();
  ASSERT_TRUE(Call(*peer, "").ok());
  EXPECT_TRUE(Eventually([&] { return Up(*peer).size() == 4; }));
  EXPECT_EQ(Up(*peer).count("fake0"), 2u);
  EXPECT_EQ(FakeRdma::Current()->queue_pairs(), 8);
}

INSTANTIATE_TEST_SUITE_P(Device, CrossedRailsTest, ::testing::Values(Kind<RailsSetup>("Crossed", {})),
                         [](const auto& info) { return info.param.name; });

class DeadRailTest : public RailsTest {};

// Long before the device says so, since there is another way.
TEST_P(DeadRailTest, ARailWhosePacketsDoNotArriveIsGivenUpSoonAndTakenBack) {
  FakeRdma& device = *FakeRdma::Current();
  Listen(FillForReads);
  auto peer = Connect();
  ASSERT_TRUE(Call(*peer, "").ok());
  ASSERT_TRUE(Eventually([&] { return Up(*peer).size() == 2; }));
  Load load(this, peer);
  ASSERT_TRUE(Eventually([&] { return ReadsOver(*peer, "fake0") > 10 && ReadsOver(*peer, "fake1") > 10; }));
  const int64_t lost = GetCounter("transport.verbs.client.connections_lost").Get();
  const int64_t stuck = GetCounter("transport.verbs.connections_stuck").Get();
  device.MakeAllDeaf(1);
  const uint64_t over_other = ReadsOver(*peer, "fake0");
  EXPECT_TRUE(
      Eventually([&] { return GetCounter("transport.verbs.client.connections_lost").Get() == lost + 1; }));
  EXPECT_EQ(GetCounter("transport.verbs.connections_stuck").Get(), stuck);
  EXPECT_GT(ReadsOver(*peer, "fake0"), over_other + 100);
  const uint64_t reads = ReadsOver(*peer, "fake1");
  EXPECT_TRUE(Eventually([&] { return ReadsOver(*peer, "fake1") > reads + 10; }));
  EXPECT_EQ(load.wrong(), 0);
  EXPECT_LE(load.lost(), 8);
}

INSTANTIATE_TEST_SUITE_P(Device, DeadRailTest,
                         ::testing::Values(Kind<RailsSetup>("Isolated", {.isolated = true})),
                         [](const auto& info) { return info.param.name; });

class NarrowRailsTest : public RailsTest {};

// One call at a time on each rail: the others wait, and are not lost with a rail.
TEST_P(NarrowRailsTest, CallsThatWaitMoveToAnotherRail) {
  FakeRdma& device = *FakeRdma::Current();
  OneShot<Unit> open;
  std::atomic<int> entered = 0;
  Listen([&](CallPtr call) -> Task<void> {
    return [](OneShot<Unit> open, std::atomic<int>& entered, CallPtr call) -> Task<void> {
      if (call->body() == "wait") ++entered;
      while (call->body() == "wait" && !open.IsSet()) co_await Yield();
      (void)co_await call->Reply(std::string());
    }(open, entered, std::move(call));
  });
  auto peer = Connect();
  ASSERT_TRUE(Call(*peer, "").ok());
  ASSERT_TRUE(Eventually([&] { return Up(*peer).size() == 2; }));
  std::atomic<int> done = 0, lost = 0, ended = 0;
  for (int i = 0; i < 6; ++i) {
    Spawn(
        executor(),
        [](std::shared_ptr<Peer> peer) -> Task<StatusOr<std::string>> {
          CallRequest request{"wait", CallMemory::kNone, {}};
          co_return co_await peer->Call(std::move(request), 20s);
        }(peer),
        [&](StatusOr<std::string> reply) {
          ++(reply.ok() ? done : lost);
          ++ended;
        });
  }
  auto count = [&](uint64_t PathStats::*what) {
    uint64_t sum = 0;
    for (const PathStats& stats : peer->path().stats) sum += stats.*what;
    return sum;
  };
  ASSERT_TRUE(Eventually([&] { return entered == 2 && count(&PathStats::credit_waits) == 4; }));
  uint64_t waiting = 0;  // for the rail that fails: two, if no two calls have chosen at the same moment
  for (const PathStats& stats : peer->path().stats) {
    if (stats.rail.starts_with("fake1")) waiting += stats.credit_waits;
  }
  device.BreakDown(1);
  ASSERT_TRUE(Eventually([&] { return lost == 1; }));
  open.Set({});
  EXPECT_TRUE(Eventually([&] { return ended == 6; }));
  EXPECT_EQ(done, 5);
  EXPECT_EQ(count(&PathStats::moved), waiting);
}

INSTANTIATE_TEST_SUITE_P(Device, NarrowRailsTest,
                         ::testing::Values(Kind<RailsSetup>("Isolated", {.isolated = true}, 1)),
                         [](const auto& info) { return info.param.name; });

class NodesTest : public RailsTest {};

TEST_P(NodesTest, ACallGoesOverTheRailNearItsMemory) {
  Listen(FillForReads);
  auto peer = Connect();
  Bytes memory(kSize, std::byte{0x11});
  auto spans = Whole(memory);
  const int node = NumaNodeOf(spans);
  if (node != 0 && node != 1) GTEST_SKIP() << "this machine does not tell the memory's NUMA node";
  ASSERT_TRUE(Call(*peer, "").ok());
  ASSERT_TRUE(Eventually([&] { return Up(*peer).size() == 2; }));
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(Call(*peer, "", CallMemory::kPutTarget, spans).ok());
  EXPECT_EQ(ReadsOver(*peer, "fake" + std::to_string(node)), 20u);
  for (const PathStats& stats : peer->path().stats) {
    EXPECT_EQ(stats.numa_node, stats.rail.starts_with("fake1") ? 1 : 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Device, NodesTest,
                         ::testing::Values(Kind<RailsSetup>("Isolated", {.isolated = true, .nodes = true})),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace nacre::verbs
