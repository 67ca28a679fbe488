#include "transport/path_meter.h"

#include <gtest/gtest.h>

namespace nacre {
namespace {

TEST(PathMeters, CountEachPathAndRailByItself) {
  PathMeters meters;
  meters.Of("tcp")->Ended(CallMemory::kPutTarget, 4096, 100us, OkStatus());
  meters.Of("rdma", "mlx5_0 port 1")->Ended(CallMemory::kGetSource, 1000, 10us, OkStatus());
  meters.Of("rdma", "mlx5_0 port 1")->Ended(CallMemory::kNone, 0, 10us, OkStatus());
  meters.Of("rdma", "mlx5_0 port 1")
      ->Ended(CallMemory::kGetSource, 1000, 10s, absl::UnavailableError("gone"));
  meters.Of("rdma", "mlx5_1 port 1")->Waits();
  meters.Of("rdma", "mlx5_1 port 1")->AddConnection(1);
  meters.Of("rdma", "mlx5_2 port 1");
  meters.Of("shm");
  const std::vector<PathStats> all = meters.Read();
  ASSERT_EQ(all.size(), 3u) << "what has carried nothing and is no rail that is there is not told of";
  EXPECT_EQ(all[0].path, "tcp");
  EXPECT_EQ(all[0].reads, 1u);
  EXPECT_EQ(all[0].read_bytes, 4096u);
  EXPECT_FALSE(all[0].down);
  EXPECT_EQ(all[1].rail, "mlx5_0 port 1");
  EXPECT_EQ(all[1].writes, 1u);
  EXPECT_EQ(all[1].written_bytes, 1000u);
  EXPECT_EQ(all[1].other_calls, 1u);
  EXPECT_EQ(all[1].lost, 1u);
  EXPECT_LE(all[1].p99_micros, 12u) << "only answers count";
  EXPECT_EQ(all[2].credit_waits, 1u);
}

TEST(PathMeters, ARailIsDownWhileItHasNoConnection) {
  PathMeters meters;
  auto rail = meters.Of("rdma", "mlx5_0 port 1");
  EXPECT_TRUE(rail->Read().down);
  rail->AddConnection(1);
  auto registrations = std::make_shared<Counter>();
  registrations->Add(7);
  rail->SetDevice(1, registrations);
  EXPECT_FALSE(rail->Read().down);
  EXPECT_EQ(rail->Read().numa_node, 1);
  EXPECT_EQ(rail->Read().registrations, 7u);
  rail->AddConnection(-1);
  EXPECT_TRUE(rail->Read().down);
}

}  // namespace
}  // namespace nacre
