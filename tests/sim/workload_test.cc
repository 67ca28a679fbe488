// What the workload takes for answered early.
#include "tests/sim/workload.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "rpc/convert.h"

namespace nacre::sim {
namespace {

// Seed 1001008545: work goes on after a fault that the client has outlived, and its next change, which the
// MDS does, counted as one more that it has answered early.
TEST(WorkloadStart, WhatAClientHasAnsweredEarlierIsNotNew) {
  World world(1);
  Network network(world);
  ClusterOptions options;
  options.clients = 1;
  Cluster cluster(world, network, options);
  for (int node = 0; node < cluster.client(0); ++node) cluster.Boot(node);
  world.RunFor(3s);  // the OSSes register
  cluster.Boot(cluster.client(0));
  ASSERT_TRUE(world.RunUntil([&] { return cluster.AllReady(); }, 60s));
  Model model;
  WorkloadOptions idle;
  idle.workers = 0;
  Workload workload(world, cluster, model, idle);
  workload.Start(0);
  EXPECT_EQ(workload.client(0)->early_seen, 0u);
  client::FileSystem& filesystem = cluster.filesystem(0);
  Fid parent = kRootFid;  // what it has made it knows best
  for (int depth = 0; depth < 3; ++depth) {
    Spawn(cluster.process(cluster.client(0))->executor(),
          filesystem.Mknod(Root(), parent, "d", S_IFDIR | 0755, 0),
          [&parent](const StatusOr<client::Known>& made) {
            ASSERT_TRUE(made.ok()) << made.status();
            parent = FromProto(made->attr.fid());
          });
    world.RunFor(1s);
  }
  ASSERT_GT(filesystem.Look().early_answered, 0u);
  workload.Start(0);
  EXPECT_EQ(workload.client(0)->early_seen, filesystem.Look().early_answered);
}

}  // namespace
}  // namespace nacre::sim
