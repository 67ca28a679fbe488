// A whole cluster in one simulated world: an MDS, some OSSes, some clients, and the disks that outlive their
// processes.
//
// Everything is real code but the seams beneath it. Boot and Crash may be called at any moment; a node that
// is booted starts in the background. A start that fails for another reason than a fault is a failure of the
// run.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "client/filesystem.h"
#include "server/kv/mem_kv.h"
#include "server/metadata/metadata_server.h"
#include "server/object/mem_block_store.h"
#include "server/object/object_server.h"
#include "tests/sim/network.h"
#include "tests/sim/world.h"

namespace nacre::sim {

struct ClusterOptions {
  int osses = 2;
  int osts_per_oss = 1;
  int copies = 1;  // members of each OST, on servers that follow each other; no more than OSSes
  int clients = 2;
  bool clocks_step = false;  // each start of a node finds its wall clock up to an hour off
  uint64_t ost_blocks = 16 << 10;
  uint64_t slow_blocks_one_in = 0;  // operations of an OST's disk that take as long as many messages; 0: none
  MetadataOptions metadata;
  ObjectOptions object;
  client::Options client;
};

enum class Loss { kProcess, kPower };

class Cluster {
 public:
  Cluster(World& world, Network& network, ClusterOptions options);
  ~Cluster();

  // Nodes: 0 is the MDS, then the OSSes, then the clients. Behind them one more client, which is up only
  // while somebody boots it: the visitor.
  int mds() const { return 0; }
  int oss(int i) const { return 1 + i; }
  int client(int i) const { return 1 + options_.osses + i; }
  int nodes() const { return 1 + options_.osses + options_.clients; }  // without the visitor
  int visitor() const { return nodes(); }
  const ClusterOptions& options() const { return options_; }

  void Boot(int node);
  void Crash(int node, Loss loss);
  // Since when clients may have been unable to send what they hold back: servers are down, or were a moment
  // ago, and the clients' attempts have pauses. Now, if all has been well.
  Duration HeldUpSince() const;
  bool up(int node) const { return nodes_[node].process != nullptr; }
  bool ready(int node) const { return up(node) && nodes_[node].ready; }
  bool AllReady() const;
  // Of a client that is ready.
  client::FileSystem& filesystem(int i) { return *nodes_[client(i)].filesystem; }
  client::FileSystem& visiting() { return *nodes_[visitor()].filesystem; }
  Process* process(int node) { return nodes_[node].process; }
  MetadataServer& metadata() { return *nodes_[0].metadata; }  // of an MDS that is ready

  KvStore& mdt() { return mdt_disk(); }
  MemKv& mdt_disk() { return nodes_[0].stores[0]->kv; }
  struct Disk {  // of an MDT (without blocks) or a member of an OST
    OstIndex index = 0;
    MemKv kv;
    std::unique_ptr<MemBlockStore> blocks;
  };
  // The member of an OST that is on this OSS; null: none is.
  Disk* member(int index, int oss_number);
  // The OSSes of an OST's members, as they were configured.
  std::vector<int> MembersOf(int index) const;
  // That of the first member.
  Disk& ost(int index) { return *member(index, index / options_.osts_per_oss); }
  // The disks of an OSS that is down are replaced by empty ones.
  void Wipe(int oss_number);
  int osts() const { return options_.osses * options_.osts_per_oss; }
  // How many steps the logs on this server's disks have taken: a commit has two, before and after it takes
  // effect, and so has a sync.
  uint64_t log_steps(int server) const { return nodes_[static_cast<size_t>(server)].log_steps; }

  // Ends what runs in an orderly way: unmount or Stop. The node is down when it returns true.
  bool Shutdown(int node, Duration limit);

 private:
  Duration held_up_since_{0};
  Duration last_boot_{0};  // of a server
  struct Node {
    std::string name;
    Process* process = nullptr;
    bool ready = false;
    int starts = 0;
    int boots = 1;  // of the machine
    std::vector<std::unique_ptr<Disk>> stores;
    uint64_t log_steps = 0;
    client::FileSystem* filesystem = nullptr;
    MetadataServer* metadata = nullptr;
    ObjectServer* object = nullptr;
  };

  void AddDisk(Node& node, OstIndex index, uint64_t block_count);
  static Task<void> BootMds(Cluster* cluster, Process* process);
  static Task<void> BootOss(Cluster* cluster, Process* process, int i);
  static Task<void> BootClient(Cluster* cluster, Process* process, int i);
  static Task<void> Stop(Cluster* cluster, Node* node, OneShot<Unit> done);
  static Task<Status> SlowSync(Cluster* cluster, Node* node);
  static Task<void> SlowCommit(Cluster* cluster, Node* node);

  World& world_;
  Network& network_;
  const ClusterOptions options_;
  SeededRandom disk_random_;
  std::vector<Node> nodes_;
};

}  // namespace nacre::sim
