// An administrator who moves files and drains OSTs all the time, while everything else goes on, and another
// one who has files spread over the OSTs. The model needs to know nothing of it, for nothing that anybody can
// see changes.
#pragma once

#include <memory>

#include "rpc/cluster_channel.h"
#include "tests/sim/cluster.h"
#include "tests/sim/workload.h"

namespace nacre::sim {

class Mover {
 public:
  // All outlive the world's processes.
  Mover(World& world, Cluster& cluster, Workload& workload, uint64_t seed)
      : world_(world), cluster_(cluster), workload_(workload), random_(seed), rebalances_(~seed) {}

  void Start(bool rebalances);
  // The administrators leave. The moves that they have begun at the MDS go on.
  void Stop();
  uint64_t moved() const { return moved_; }
  uint64_t rebalanced() const { return rebalanced_; }  // files, as far as it was said

 private:
  static Task<void> Run(Mover* mover, Process* process);
  Task<void> MoveSome(std::shared_ptr<ClusterChannel> channel);
  Task<void> ChangeDrain(std::shared_ptr<ClusterChannel> channel);
  static Task<void> RunRebalances(Mover* mover, Process* process);
  Task<void> ChangeRebalance(std::shared_ptr<ClusterChannel> channel);
  void NoteRebalance(const proto::RebalanceState& state);
  Fid PickFile();

  World& world_;
  Cluster& cluster_;
  Workload& workload_;
  SeededRandom random_;      // of its own: without it a seed runs as it would
  SeededRandom rebalances_;  // likewise: of the second administrator
  Process* process_ = nullptr;
  std::optional<OstIndex> draining_;
  uint64_t moved_ = 0;
  uint64_t run_ = 0, moved_of_run_ = 0;  // as it was said last
  uint64_t rebalanced_ = 0;
};

}  // namespace nacre::sim
