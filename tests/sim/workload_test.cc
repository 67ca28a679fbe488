// The workload's count of early answers, and the errors that it takes from a mount without files.
#include "tests/sim/workload.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <memory>
#include <optional>

#include "rpc/convert.h"

namespace nacre::sim {
namespace {

class WorkloadTest : public testing::Test {
 protected:
  // A client that has mounted, and works only when it is told to.
  WorkloadTest() {
    for (int node = 0; node < cluster.client(0); ++node) cluster.Boot(node);
    world.RunFor(3s);  // the OSSes register
    cluster.Boot(cluster.client(0));
    EXPECT_TRUE(world.RunUntil([this] { return cluster.AllReady(); }, 60s));
    workload.Start(0);
  }

  client::FileSystem& filesystem() { return cluster.filesystem(0); }

  template <typename T>
  std::optional<T> Await(Task<T> task) {
    auto result = std::make_shared<std::optional<T>>();
    Spawn(cluster.process(cluster.client(0))->executor(), std::move(task),
          [result](T got) { result->emplace(std::move(got)); });
    EXPECT_TRUE(world.RunUntil([&] { return result->has_value(); }, 60s));
    return *result;
  }

  static ClusterOptions OneClient() {
    ClusterOptions options;
    options.clients = 1;
    return options;
  }
  static WorkloadOptions Idle() {
    WorkloadOptions idle;
    idle.workers = 0;
    return idle;
  }

  World world{1};
  Network network{world};
  Cluster cluster{world, network, OneClient()};
  Model model;
  Workload workload{world, cluster, model, Idle()};
};

// Seed 1001008545: work goes on after a fault that the client has outlived, and its next change, which the
// MDS does, counted as one more that it has answered early.
TEST_F(WorkloadTest, WhatAClientHasAnsweredEarlierIsNotNew) {
  EXPECT_EQ(workload.client(0)->early_seen, 0u);
  Fid parent = kRootFid;  // what it has made it knows best
  for (int depth = 0; depth < 3; ++depth) {
    auto made = Await(filesystem().Mknod(Root(), parent, "d", S_IFDIR | 0755, 0));
    ASSERT_TRUE(made && made->ok());
    parent = FromProto((*made)->attr.fid());
    world.RunFor(1s);
  }
  ASSERT_GT(filesystem().Look().early_answered, 0u);
  workload.Start(0);
  EXPECT_EQ(workload.client(0)->early_seen, filesystem().Look().early_answered);
}

// Seed 640001790: what the client had answered early was lost, and with it every file; the next file that was
// made was told of it.
TEST_F(WorkloadTest, TakesTheErrorsOfTheMountWhereThereIsNoFile) {
  auto parent = Await(filesystem().Mknod(Root(), kRootFid, "d", S_IFDIR | 0755, 0));
  ASSERT_TRUE(parent && parent->ok());
  world.RunFor(1s);
  const client::Seen before = filesystem().Look();
  network.Cut(cluster.client(0), cluster.mds());
  auto lost = Await(filesystem().Mknod(Root(), FromProto((*parent)->attr.fid()), "d", S_IFDIR | 0755, 0));
  ASSERT_TRUE(lost && lost->ok());
  ASSERT_GT(filesystem().Look().early_answered, before.early_answered);
  world.RunFor(60s);
  network.Heal();
  ASSERT_TRUE(world.RunUntil([&] { return filesystem().Look().epoch != before.epoch; }, 60s))
      << "not evicted";
  world.RunFor(10s);
  EXPECT_EQ(*Await(TakeErrors(&workload, workload.client(0))), OkStatus());
  auto made = Await(filesystem().Create(Root(), kRootFid, "f", 0644, O_RDWR));
  ASSERT_TRUE(made && made->ok()) << made->status();
  EXPECT_EQ(*Await(filesystem().Fsync((*made)->handle, false)), OkStatus());
}

}  // namespace
}  // namespace nacre::sim
