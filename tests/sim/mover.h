// An administrator who moves files and drains OSTs all the time, while everything else goes on. The model
// needs to know nothing of it, for nothing that anybody can see changes.
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
      : world_(world), cluster_(cluster), workload_(workload), random_(seed) {}

  void Start();
  void Stop();
  uint64_t moved() const { return moved_; }

 private:
  static Task<void> Run(Mover* mover, Process* process);
  Task<void> MoveSome(std::shared_ptr<ClusterChannel> channel);
  Task<void> ChangeDrain(std::shared_ptr<ClusterChannel> channel);
  Fid PickFile();

  World& world_;
  Cluster& cluster_;
  Workload& workload_;
  SeededRandom random_;  // of its own: without it a seed runs as it would
  Process* process_ = nullptr;
  std::optional<OstIndex> draining_;
  uint64_t moved_ = 0;
};

}  // namespace nacre::sim
