// One seed: a cluster of random shape, random work on it, random faults, and what must be true afterwards.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>

#include "server/metadata/check.h"
#include "tests/sim/cluster.h"
#include "tests/sim/model.h"
#include "tests/sim/mover.h"
#include "tests/sim/plants.h"
#include "tests/sim/workload.h"

namespace nacre::sim {

struct RunOptions {
  uint64_t seed = 1;
  Plant plant = Plant::kNone;
  bool trace = false;
  std::string event;   // only this one happens (events.cc); empty: any
  bool ahead = false;  // also faults and promises that do not hold yet (docs/testing.md)
  // Without slow disks, moments that faults wait for (moment.cc), added faults and files saved by rename:
  // what earlier versions did, whose seeds run as they did then.
  bool plain = false;
  int clients = 1;          // at least so many
  int copies = 1;           // of each OST; faults that are about these happen if there are several
  bool head_reads = false;  // reads go to the heads of OSTs alone, as in earlier versions
  int mdses = 1;            // with copies of the MDT; the same holds
  bool growth = false;      // files are moved and OSTs drained all the time (mover.h)
  bool rebalance = false;   // with growth: files are also spread over OSTs
  bool scrub = false;       // with copies: OSSes scrub all the time, and blocks go bad (scrub_events.cc)
};

struct RunResult {
  std::string failure;  // empty: everything held
  uint64_t trace_hash = 0;
  uint64_t operations = 0;
  uint64_t steps = 0;
  uint64_t rebalanced = 0;  // files that were spread over OSTs
  Duration virtual_time{0};
};

RunResult RunSeed(const RunOptions& options);

// The choices that the seed makes, apart from the order of events.
struct Shape {
  ClusterOptions cluster;
  WorkloadOptions workload;
  std::string layout;    // of the root directory; empty: the default
  NetworkFaults faults;  // once everything runs
  coordination::MemEtcdFaults etcd;
  int events = 4;
};
Shape ChooseShape(Random& random, const RunOptions& options);

// Returns what the scrubs of all runs in this process have found: members with something else in an object
// than the head, to which none of the faults leads.
int64_t DifferingObjects();

inline constexpr Duration kPatience = 120s;  // whatever has not ended by then hangs
// A client's end loses nothing older: write-behind holds five seconds, and some of it was under way.
inline constexpr Duration kClientLoss = 6500ms;

class Scenario;

enum class Needs { kNothing, kChains, kSeveralMdses, kScrubs, kMemberReads };

// A fault that may happen, and how often beside the others.
struct EventKind {
  const char* name;
  uint64_t weight;
  bool holds;   // false: not every seed holds yet; it happens only by its name or with RunOptions::ahead
  bool ends;    // it begins with the end of a process or a machine: what was under way shows
  Needs needs;  // it happens only where there is
  void (Scenario::*happen)();
};
const std::vector<EventKind>& EventKinds();

class Scenario {
 public:
  Scenario(World& world, const RunOptions& options);
  ~Scenario();

  void Run();
  uint64_t operations() const { return workload_.done(); }
  uint64_t rebalanced() const { return mover_ ? mover_->rebalanced() : 0; }

 private:
  friend const std::vector<EventKind>& EventKinds();
  void Start();
  const EventKind& PickKind();
  const EventKind& PickEnd();
  void AwaitMoment();
  void AwaitPromise(Promise promise);
  void AwaitLogStep(int server);
  void Happen(const EventKind& kind);  // at a moment of its own
  bool Chosen(const EventKind& kind) const;
  void CrashServer();
  void CrashClient();
  void EvictClient();
  void EvictWithoutOss();
  void CutOff(int index);
  void EndOthers(int index);
  void FreezeClient();
  bool WaitAnswers(int index, const char* which);
  void PowerLoss();
  void OssLosesPower();
  void MdsLosesPower();
  void Partition();
  void LongPartition();
  void DeadOss();
  void FullMdt();
  void FailedFlush();
  void DeadMember();
  void CutOffMember();
  void WipedMember();
  void MembersLosePower();
  void BadBlocks();
  void DeadMds();
  void MdsesLosePower();
  void FrozenMds();
  void CutOffMds();
  void LeaderlessEtcd();
  void WipedMds();
  bool SetAtRest();
  bool WaitSetAtRest();
  int PickMds();
  void WaitCopies(const char* why);
  void CheckCopies(const char* when);
  bool WaitInSync(const char* why);
  std::vector<int> InSync(int ost, bool as_they_run = false);
  bool ServesWithout(int oss);
  bool MayForget(int oss);
  void BreakSome();
  // One client after the other.
  void OnEachClient(Task<Status> (*todo)(Workload*, ClientState*), const char* what);
  void TakeAllErrors();
  void WaitConnected();
  int PickClient();
  void EndClient(int index, Duration since);
  static Task<Status> Visit(client::FileSystem* filesystem);
  void WaitProgress(const char* why, Duration limit = kPatience);
  void Work(Duration time);

  bool Quiesce();
  bool WaitReady(const char* why);
  std::set<SessionId> WaitEvicted(int clients);
  void WaitSizes(const std::set<SessionId>& living);
  void BootDown();
  void ResumeClients();
  Status Await(Process* process, Task<Status> task, const char* what);
  void Settle(const Model::Losses& losses);
  void EndMoves();
  void AwaitNothingToDestroy();
  void EndRebalance();
  void Finish();
  void CheckStores();
  void CheckMembers(Process* checker, int ost, mds::ObjectCheck* objects);
  bool failed() const { return !world_.failure().empty(); }
  Duration UpTo(Duration limit);

  World& world_;
  const std::string only_;  // the one event that happens; empty: all
  const bool ahead_;
  const bool plain_;
  const int copies_;
  const bool scrubs_;
  const int64_t differed_;  // objects that scrubs of earlier runs have found to differ
  SeededRandom moments_;    // of its own: a plain seed draws nothing for moments
  Shape shape_;
  Network network_;
  Cluster cluster_;
  Model model_;
  Workload workload_;
  std::optional<Mover> mover_;
  bool rebalances_ = false;
  bool orphans_allowed_ = false;  // a crash took a file whose objects had been written: the checker's to find
};

}  // namespace nacre::sim
