// A whole cluster in one simulated world: an MDS or several, some OSSes, some clients, and the disks that
// outlive their processes. Several MDSes have copies of one MDT, and an etcd that decides between them.
//
// Everything is real code but the seams beneath it. Boot and Crash may be called at any moment; a node that
// is booted starts in the background. A start that fails for another reason than a fault is a failure of the
// run. A primary that has been deposed ends at once and is booted again, as nacre-mds does by itself.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/filesystem.h"
#include "proto/copies.pb.h"
#include "server/coordination/mem_coordinator.h"
#include "server/kv/mem_kv.h"
#include "server/metadata/metadata_server.h"
#include "server/object/mem_block_store.h"
#include "server/object/object_server.h"
#include "server/replication/member.h"
#include "tests/sim/network.h"
#include "tests/sim/world.h"

namespace nacre::sim {

struct ClusterOptions {
  int mdses = 1;
  int osses = 2;
  int osts_per_oss = 1;
  int copies = 1;  // members of each OST, on servers that follow each other; no more than OSSes
  int clients = 2;
  bool clocks_step = false;  // each start of a node finds its wall clock up to an hour off
  uint64_t ost_blocks = 16 << 10;
  uint64_t slow_blocks_one_in = 0;  // operations of an OST's disk that take as long as many messages; 0: none
  MetadataOptions metadata;
  replication::MemberOptions member;  // of several MDSes
  ObjectOptions object;
  client::Options client;
  // Bugs planted where an MDS is put together (docs/testing.md): before the other MDSes have what it may
  // depend on, an answer to what changes nothing is given, or a request to an OSS is sent.
  bool plant_early_read = false, plant_early_call = false;
};

enum class Loss { kProcess, kPower };

class Cluster {
 public:
  Cluster(World& world, Network& network, ClusterOptions options);
  ~Cluster();

  // Nodes: the MDSes, then the OSSes, then the clients. Behind them one more client, which is up only while
  // somebody boots it: the visitor. Of several MDSes mds() is the primary; while there is none, the last one.
  int mds() const;
  bool is_mds(int node) const { return node < options_.mdses; }
  int oss(int i) const { return options_.mdses + i; }
  int client(int i) const { return oss(0) + options_.osses + i; }  // client(0): how many servers there are
  int nodes() const { return client(0) + options_.clients; }       // without the visitor
  int visitor() const { return nodes(); }
  const ClusterOptions& options() const { return options_; }

  void Boot(int node);
  void Crash(int node, Loss loss);
  // The machine has gone with the process: nobody there tells the MGS of its end.
  void EndWitnesses(int node);
  // Since when clients may have been unable to send what they hold back: servers are down, or were a moment
  // ago, and the clients' attempts have pauses. Now, if all has been well.
  Duration HeldUpSince() const;
  bool up(int node) const { return nodes_[node].process != nullptr; }
  bool ready(int node) const { return up(node) && nodes_[node].ready; }
  // Of several MDSes also: one of them serves, and all others have what it has.
  bool AllReady() const;
  // Of a client that is ready.
  client::FileSystem& filesystem(int i) { return *nodes_[client(i)].filesystem; }
  client::FileSystem& visiting() { return *nodes_[visitor()].filesystem; }
  Process* process(int node) { return nodes_[node].process; }
  bool serves() const { return nodes_[Index(mds())].metadata != nullptr; }  // the MDS
  MetadataServer& metadata() { return *nodes_[Index(mds())].metadata; }     // of one that serves

  KvStore& mdt() { return mdt_disk(mds()); }
  MemKv& mdt_disk(int mds) { return nodes_[Index(mds)].stores[0]->kv; }
  struct Disk {  // of an MDT (without blocks) or a member of an OST
    OstIndex index = 0;
    MemKv kv;
    std::unique_ptr<MemBlockStore> blocks;
  };
  // The member of an OST that is on this OSS; null: none is.
  Disk* member(int index, int oss_number);
  // 0: the OSS is not ready.
  uint64_t instance(int oss_number) const;
  // The OSSes of an OST's members, as they were configured.
  std::vector<int> MembersOf(int index) const;
  // That of the first member.
  Disk& ost(int index) { return *member(index, index / options_.osts_per_oss); }
  // The disks of a server that is down are replaced by empty ones.
  void Wipe(int node);

  // Between several MDSes; none else.
  coordination::MemEtcd& etcd() { return *etcd_; }
  void CutFromEtcd(int mds) { etcd_->Cut(nodes_[Index(mds)].name); }
  void HealEtcd();
  // Something has kept the primary from serving since then, though it was up.
  void NoteHeldUp(Duration since);
  // CopiesText tells people what the primary knows of the copies; CopiesDiffer the first difference between
  // two copies that say they are the same, which may be a change that is under way (empty: there is none).
  bool CopiesInSync() const;
  std::string CopiesText() const;
  std::string CopiesDiffer();
  int osts() const { return options_.osses * options_.osts_per_oss; }
  // How many steps the logs on this server's disks have taken: a commit has two, before and after it takes
  // effect, and so has a sync.
  uint64_t log_steps(int server) const { return nodes_[static_cast<size_t>(server)].log_steps; }

  // The way of an administrator's process to the MDS.
  std::shared_ptr<ClusterChannel> ChannelToMdses(Process* process);

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
    std::string boot() const { return std::to_string(boots); }
    std::vector<std::unique_ptr<Disk>> stores;
    uint64_t log_steps = 0;
    bool copy = false;       // an MDS whose disk begins as a copy, and
    bool formatted = false;  // has been told so
    uint64_t epoch = 0;      // in which it was primary last
    bool taking_over = false;
    bool stopping = false;
    client::FileSystem* filesystem = nullptr;
    replication::Member* member = nullptr;
    MetadataServer* metadata = nullptr;
    ObjectServer* object = nullptr;
    std::vector<Process*> witnesses;  // of an OSS's processes that have ended (daemon/end_witness.h)
  };

  void AddDisk(Node& node, OstIndex index, uint64_t block_count);
  static size_t Index(int node) { return static_cast<size_t>(node); }
  std::string MdsAddress(int mds) const;
  std::shared_ptr<MetadataConnector> ConnectorToMdses(Process* process);
  proto::MdtRecord Record() const;
  void BeginAnew(int node, Process* process, const Status& why);

  static Task<void> BootMds(Cluster* cluster, Process* process);
  static Task<void> BootMember(Cluster* cluster, Process* process, int i);
  static Task<void> AwaitEnd(Cluster* cluster, Process* process, int i);
  void StartWitness(int number, uint64_t instance);
  static Task<void> Witness(Cluster* cluster, Process* process, uint64_t instance);
  void EndWitness(Process* process);
  static Task<void> BootOss(Cluster* cluster, Process* process, int i);
  static Task<void> AwaitFailedFlush(Cluster* cluster, Process* process, int number);
  static Task<void> BootClient(Cluster* cluster, Process* process, int i);
  static Task<void> Stop(Cluster* cluster, Node* node, OneShot<Unit> done);
  static Task<Status> SlowSync(Cluster* cluster, Node* node);
  static Task<void> SlowCommit(Cluster* cluster, Node* node);

  World& world_;
  Network& network_;
  const ClusterOptions options_;
  SeededRandom disk_random_;
  std::vector<Node> nodes_;
  std::optional<SeededRandom> etcd_random_;
  std::unique_ptr<coordination::MemEtcd> etcd_;  // of several MDSes
};

}  // namespace nacre::sim
