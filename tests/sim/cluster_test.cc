// The delays of simulated disks, and the count of the steps of a server's log.
#include "tests/sim/cluster.h"

#include <gtest/gtest.h>

namespace nacre::sim {
namespace {

class ClusterDisks : public testing::Test {
 protected:
  Cluster& Make(uint64_t slow_blocks_one_in) {
    ClusterOptions options;
    options.slow_blocks_one_in = slow_blocks_one_in;
    cluster_ = std::make_unique<Cluster>(world_, network_, options);
    process_ = world_.Start(cluster_->nodes(), "test");
    return *cluster_;
  }

  // How long this task takes.
  Duration Time(Task<Status> task) {
    const Duration start = world_.clock().Now();
    bool done = false;
    Spawn(process_->executor(), std::move(task), [&done](const Status& status) {
      EXPECT_TRUE(status.ok()) << status;
      done = true;
    });
    EXPECT_TRUE(world_.RunUntil([&] { return done; }, 10s));
    return world_.clock().Now() - start;
  }

  // The longest of many flushes of an OST.
  Duration LongestFlush() {
    Duration longest{0};
    for (int i = 0; i < 100; ++i) longest = std::max(longest, Time(cluster_->ost(0).blocks->Flush()));
    return longest;
  }

  World world_{1};
  Network network_{world_};
  std::unique_ptr<Cluster> cluster_;
  Process* process_ = nullptr;
};

TEST_F(ClusterDisks, AnOstIsNeverSlowUnlessAsked) {
  Make(0);
  EXPECT_LE(LongestFlush(), 500us);
}

TEST_F(ClusterDisks, AnOstIsSlowNowAndThen) {
  Make(10);
  EXPECT_GT(LongestFlush(), 2ms);
}

// The moments between the steps are where a fault shows a wrong order: each is counted when it begins.
TEST_F(ClusterDisks, StepsOfAServersLogAreCounted) {
  Cluster& cluster = Make(0);
  const int oss = cluster.oss(0);
  KvBatch batch;
  batch.Put("key", "value");
  Spawn(process_->executor(), cluster.ost(0).kv.Commit(std::move(batch)), [](Status) {});
  EXPECT_TRUE(world_.RunUntil([&] { return cluster.log_steps(oss) == 1; }, 1s));
  EXPECT_FALSE(cluster.ost(0).kv.Get("key").ok());
  EXPECT_TRUE(world_.RunUntil([&] { return cluster.log_steps(oss) == 2; }, 1s));
  EXPECT_TRUE(cluster.ost(0).kv.Get("key").ok());
  (void)Time(cluster.ost(0).kv.Sync());
  EXPECT_EQ(cluster.log_steps(oss), 4u);
  EXPECT_EQ(cluster.log_steps(cluster.mds()), 0u);
}

}  // namespace
}  // namespace nacre::sim
