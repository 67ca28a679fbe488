// Members over stores in memory and an etcd in memory, in virtual time: they can be killed, frozen, cut off
// from each other and lose power. One thread.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/coordination/mem_coordinator.h"
#include "server/kv/mem_kv.h"
#include "server/replication/member.h"
#include "tests/sim/world.h"

namespace nacre::replication {

class MemberFixture {
 public:
  explicit MemberFixture(uint64_t seed = 1, int members = 3);
  ~MemberFixture();

  // A member's process and machine; members are known by their numbers, and named "mds0", ….
  struct Machine {
    std::string name;
    std::unique_ptr<MemKv> disk = std::make_unique<MemKv>();
    int boots = 1;
    sim::Process* process = nullptr;
    std::unique_ptr<coordination::Coordinator> coordinator;
    std::unique_ptr<CopyConnector> connector;
    std::shared_ptr<Member> member;
    std::optional<StatusOr<Member::Primacy>> primacy;  // what AwaitPrimary has said
    std::optional<Status> end;                         // what AwaitEnd has said
  };

  void Start(int i);
  void Kill(int i);
  void LosePower(int i);
  void Stop(int i);  // in an orderly way
  void Freeze(int i, bool frozen);
  void Wipe(int i);        // of one that is down: a new disk, made to be filled
  void Cut(int i, int j);  // both ways
  void CutOff(int i);      // from all others and etcd
  void HealAll();

  bool Leads(int i) const { return machines[i].primacy && machines[i].primacy->ok() && !machines[i].end; }
  int Leader() const;  // -1: none
  // The set as the coordinator has it, without the prefix of the names: "0 2".
  std::string InSync();
  bool RunUntil(const std::function<bool()>& done, Duration limit = 30s) {
    return world.RunUntil(done, limit);
  }
  bool AwaitLeader(int i) {
    return RunUntil([this, i] { return Leads(i) && machines[i].member->MayServe(); });
  }
  bool AwaitInSync(const std::string& who) {
    return RunUntil([&] { return InSync() == who; });
  }

  // As a client of the member's store. Nothing: no answer within the limit.
  std::optional<Status> Put(int i, std::string key, std::string value, Duration limit = 30s);
  std::string Get(int i, const std::string& key) const;  // of the disk; empty: nothing
  // The MDT on this disk, without the copies' own records.
  std::string Content(int i) const;

  MemberOptions options;  // of those that are started from now on

  sim::World world;

 private:
  SeededRandom random_;

 public:
  sim::Process* const etcd_process;
  coordination::MemEtcd etcd;
  std::vector<Machine> machines;

 private:
  friend class TestChannel;

  bool Severed(int i, int j) const { return cut_.contains({std::min(i, j), std::max(i, j)}); }

  std::set<std::pair<int, int>> cut_;
};

}  // namespace nacre::replication
