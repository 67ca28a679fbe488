// The counts of calls by every transport but the one in process (transport/path_meter.h).
#include <gtest/gtest.h>

#include "tests/transport/transport_fixture.h"

namespace nacre {
namespace {

using Bytes = std::vector<std::byte>;

Task<void> FillAndReply(CallPtr call) {
  const Bytes data(call->memory_size(), std::byte{0x77});
  const std::span<const std::byte> out(data);
  if (call->memory_kind() == CallMemory::kPutTarget) (void)co_await call->Put(0, std::span(&out, 1));
  (void)co_await call->Reply(std::string());
}

TEST_P(TransportTest, CountsItsCalls) {
  constexpr size_t kSize = 100'000;
  Listen(FillAndReply);
  auto peer = Connect();
  Bytes memory(kSize);
  ASSERT_TRUE(Call(*peer, "", CallMemory::kPutTarget, Whole(memory)).ok());
  ASSERT_TRUE(Call(*peer, "", CallMemory::kGetSource, Whole(memory)).ok());
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Call(*peer, "x").ok());
  const PathInfo path = peer->path();
  if (path.path == "inproc") GTEST_SKIP() << "there is no path to tell of";
  PathStats sum;
  for (const PathStats& stats : path.stats) {
    EXPECT_EQ(stats.path, path.path);
    EXPECT_EQ(!stats.rail.empty(), path.path == "rdma");
    EXPECT_EQ(stats.registrations > 0, path.path == "rdma");
    EXPECT_FALSE(stats.down);
    EXPECT_GE(stats.p99_micros, stats.p50_micros);
    sum.reads += stats.reads;
    sum.read_bytes += stats.read_bytes;
    sum.writes += stats.writes;
    sum.written_bytes += stats.written_bytes;
    sum.other_calls += stats.other_calls;
    sum.lost += stats.lost;
  }
  EXPECT_EQ(sum.reads, 1u);
  EXPECT_EQ(sum.read_bytes, kSize);
  EXPECT_EQ(sum.writes, 1u);
  EXPECT_EQ(sum.written_bytes, kSize);
  EXPECT_EQ(sum.other_calls, 3u);
  EXPECT_EQ(sum.lost, 0u);
}

}  // namespace
}  // namespace nacre
