// One seed: a cluster of random shape, random work on it, random faults, and what must be true afterwards.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "tests/sim/cluster.h"
#include "tests/sim/model.h"
#include "tests/sim/workload.h"

namespace nacre::sim {

enum class Plant { kNone, kRepeatTwice, kCommitBeforeData, kEarlySync, kNoRecall, kForgetLosses };

struct RunOptions {
  uint64_t seed = 1;
  Plant plant = Plant::kNone;
  bool trace = false;
};

struct RunResult {
  std::string failure;  // empty: everything held
  uint64_t trace_hash = 0;
  uint64_t operations = 0;
  uint64_t steps = 0;
  Duration virtual_time{0};
};

RunResult RunSeed(const RunOptions& options);

// What the seed chooses, apart from the order of events.
struct Shape {
  ClusterOptions cluster;
  WorkloadOptions workload;
  std::string layout;    // of the root directory; empty: the default
  NetworkFaults faults;  // once everything runs
  int events = 4;
};
Shape ChooseShape(Random& random, Plant plant);

class Scenario {
 public:
  Scenario(World& world, Plant plant);
  ~Scenario();

  void Run();
  uint64_t operations() const { return workload_.done(); }

 private:
  void Start();
  void Event();
  void CrashServer(Loss loss);
  void CrashClient(bool silent);
  void PowerLoss();
  void OssLosesPower();
  void Partition();
  void BreakSome();
  void Work(Duration time);

  bool Quiesce();
  bool WaitReady(const char* why);
  void WaitEvicted();
  void BootDown();
  void ResumeClients();
  Status Await(Process* process, Task<Status> task, const char* what);
  void Settle(const Model::Losses& losses);
  void Finish();
  void CheckStores();
  bool failed() const { return !world_.failure().empty(); }
  Duration UpTo(Duration limit);

  World& world_;
  Shape shape_;
  Network network_;
  Cluster cluster_;
  Model model_;
  Workload workload_;
  bool orphans_allowed_ = false;  // a crash took a file whose objects had been written: the checker's to find
};

}  // namespace nacre::sim
