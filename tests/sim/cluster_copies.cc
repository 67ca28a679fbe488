// Several MDSes with copies of one MDT: how they begin, follow each other and end.

#include <absl/strings/escaping.h>

#include <cerrno>

#include "rpc/mds_front.h"
#include "rpc/several_servers.h"
#include "server/kv/kv_pages.h"
#include "server/replication/store_copy.h"
#include "server/replication/stored.h"
#include "server/replication/withheld_transport.h"
#include "tests/sim/cluster.h"

namespace nacre::sim {
namespace {

constexpr Duration kTimeoutOfOneMds = 5s;
constexpr char kPrefix[] = "/nacre/sim/";

// Refuses backups: nobody takes one of a simulated MDS.
class NoBackup : public BackupHandler {
 public:
  StatusOr<std::unique_ptr<BackupSource>> BeginBackup() override {
    return ErrnoError(EOPNOTSUPP, "there are no backups in the simulation");
  }
};

// Everything in the store of a copy of the MDT but the member's own records.
std::map<std::string, std::string> MdtContentsOf(KvStore& store) {
  std::map<std::string, std::string> contents;
  (void)ForEachEntry(store, "", [&](const KvEntry& entry) -> Status {
    if (!entry.key.starts_with(replication::kOwnPrefix)) contents[entry.key] = entry.value;
    return OkStatus();
  });
  return contents;
}

}  // namespace

int Cluster::mds() const {
  int last = 0;
  for (int i = 1; i < options_.mdses; ++i) {
    if (nodes_[Index(i)].epoch > nodes_[Index(last)].epoch) last = i;
  }
  return last;
}

std::string Cluster::MdsAddress(int mds) const { return "sim:" + nodes_[Index(mds)].name; }

std::shared_ptr<MetadataConnector> Cluster::ConnectorToMdses(Process* process) {
  if (options_.mdses == 1) return NewMetadataConnector(network_, process, MdsAddress(0));
  std::vector<std::shared_ptr<MetadataConnector>> each;
  for (int i = 0; i < options_.mdses; ++i)
    each.push_back(NewMetadataConnector(network_, process, MdsAddress(i)));
  return NewSeveralConnector(std::move(each));
}

std::shared_ptr<ClusterChannel> Cluster::ChannelToMdses(Process* process) {
  if (options_.mdses == 1) return NewClusterChannel(network_, process, MdsAddress(0));
  std::vector<std::shared_ptr<ClusterChannel>> each;
  for (int i = 0; i < options_.mdses; ++i)
    each.push_back(NewClusterChannel(network_, process, MdsAddress(i)));
  return NewSeveralClusterChannel(std::move(each), process->clock(), kTimeoutOfOneMds);
}

void Cluster::HealEtcd() {
  for (int i = 0; i < options_.mdses; ++i) etcd_->Heal(nodes_[Index(i)].name);
}

// The MDT's, in etcd.
proto::MdtRecord Cluster::Record() const {
  proto::MdtRecord record;
  const auto contents = etcd_->Contents();
  const auto stored = contents.find(absl::StrCat(kPrefix, "mdt"));
  if (stored != contents.end()) (void)record.ParseFromString(stored->second.value);
  return record;
}

// As the primary sees it, and as etcd has it: whom the primary is about to take in it counts already.
bool Cluster::CopiesInSync() const {
  const Node& primary = nodes_[Index(mds())];
  if (primary.metadata == nullptr || primary.member == nullptr || !primary.member->MayServe()) return false;
  const proto::MdtRecord record = Record();
  if (record.epoch() != primary.epoch || record.in_sync_size() != options_.mdses) return false;
  // A member that has lost power and has not been told yet that it has everything would tell of a loss.
  for (int i = 0; i < options_.mdses; ++i) {
    const Node& node = nodes_[Index(i)];
    const StatusOr<std::string> stored = node.stores[0]->kv.Get(replication::kStoreKey);
    if (!stored.ok()) return false;
    const auto own = replication::ParseStored<proto::StoreRecord>(*stored, "record of a copy of the MDT");
    if (!own.ok() || own->boot() != node.boot()) return false;
  }
  const proto::MdtCopies copies = primary.member->Describe();
  return copies.members_size() == options_.mdses &&
         std::ranges::all_of(copies.members(), [](const auto& member) { return member.in_sync(); });
}

std::string Cluster::CopiesText() const {
  const Node& primary = nodes_[Index(mds())];
  const std::string record = "etcd: " + Record().ShortDebugString() + "; ";
  if (primary.member == nullptr) return record + primary.name + " is down";
  return record + primary.name + (primary.metadata == nullptr ? " does not serve" : " serves") + ": " +
         primary.member->Describe().ShortDebugString();
}

std::string Cluster::CopiesDiffer() {
  const std::map<std::string, std::string> want = MdtContentsOf(mdt());
  for (int i = 0; i < options_.mdses; ++i) {
    if (i == mds()) continue;
    const std::map<std::string, std::string> has = MdtContentsOf(mdt_disk(i));
    const auto [one, other] = std::ranges::mismatch(want, has);
    if (one == want.end() && other == has.end()) continue;
    const bool more = one == want.end() || (other != has.end() && other->first < one->first);
    const std::string key = absl::CHexEscape((more ? other : one)->first);
    const char* how = more                       ? "only the latter has"
                      : has.contains(one->first) ? "they differ in"
                                                 : "only the former has";
    return absl::StrFormat("the copies at %s and %s are not the same: %s key '%s'", nodes_[Index(mds())].name,
                           nodes_[Index(i)].name, how, key);
  }
  return "";
}

// Its life as a primary is over, and it begins the next one as a follower. Not within its own process.
void Cluster::BeginAnew(int number, Process* process, const Status& why) {
  world_.Trace("%s begins anew: %s", process->name(), why.ToString());
  world_.clock().At(0s, [this, number, process] {
    const Node& node = nodes_[Index(number)];
    if (node.process != process || node.stopping) return;
    Crash(number, Loss::kProcess);
    Boot(number);
  });
}

Task<void> Cluster::BootMember(Cluster* cluster, Process* process, int i) {
  Node& node = cluster->nodes_[Index(i)];
  KvStore& store = node.stores[0]->kv;
  if (node.copy && !node.formatted) {
    Status marked = co_await replication::MarkBlank(&store);
    node.formatted = true;
    // It may have been killed before it knew that it had done it.
    if (!marked.ok() && ToErrno(marked) != EINVAL) cluster->world_.Trace("mark: %s", marked.ToString());
  }
  std::shared_ptr<Transport> transport = NewTransport(cluster->network_, process);
  process->Own(transport);
  std::shared_ptr<coordination::Coordinator> coordinator =
      cluster->etcd_->NewClient(node.name, process->clock());
  process->Own(coordinator);
  std::shared_ptr<CopyConnector> connector = NewCopyConnector(cluster->network_, process);
  process->Own(connector);
  replication::MemberEnvironment surroundings{process->executor(), process->clock(), process->random(), store,
                                              *coordinator,        *connector};
  replication::MemberOptions own = cluster->options_.member;
  own.name = node.name;
  own.address = cluster->MdsAddress(i);
  own.prefix = kPrefix;
  own.boot = node.boot();
  own.may_form = !node.copy;
  auto started = co_await replication::Member::Start(surroundings, own);
  if (!started.ok())
    co_return cluster->world_.Fail(process->name() + " does not start: " + started.status().ToString());
  std::shared_ptr<replication::Member> member = *std::move(started);
  process->Own(member);
  auto front =
      std::make_shared<MdsFront>(node.name, [member = member.get()] { return member->primary_address(); });
  if (cluster->options_.plant_early_read) front->PlantEarlyReads();
  process->Own(front);
  Service service;
  service.process = process;
  service.metadata = front.get();
  service.cluster = front.get();
  service.copies = member.get();
  Status listening = cluster->network_.Add(cluster->MdsAddress(i), std::move(service));
  if (!listening.ok()) co_return cluster->world_.Fail(listening.ToString());
  node.member = member.get();
  node.ready = true;

  auto primacy = co_await member->AwaitPrimary();
  if (node.stopping) co_return;
  if (!primacy.ok()) {
    co_return cluster->world_.Fail(process->name() +
                                   " cannot become primary: " + primacy.status().ToString());
  }
  cluster->world_.Trace("%s is primary in epoch %d", process->name(), primacy->epoch);
  if (primacy->epoch <= cluster->nodes_[Index(cluster->mds())].epoch)
    cluster->world_.Fail("two primaries in one epoch");
  node.epoch = primacy->epoch;
  node.taking_over = true;
  Spawn(process->executor(), AwaitEnd(cluster, process, i));
  std::shared_ptr<Transport> to_osts =
      replication::NewWithheldTransport(*transport, member, process->clock());
  process->Own(to_osts);
  MetadataEnvironment environment{process->executor(),
                                  process->clock(),
                                  process->random(),
                                  member->store(),
                                  cluster->options_.plant_early_call ? *transport : *to_osts,
                                  member.get()};
  MetadataOptions options = cluster->options_.metadata;
  options.boot = primacy->boot;
  options.epoch = primacy->epoch;
  auto server = co_await MetadataServer::Start(environment, options);
  if (node.stopping) co_return;
  // A primary that was deposed meanwhile ends with AwaitEnd.
  if (!server.ok()) {
    co_return cluster->world_.Trace("%s does not serve: %s", process->name(), server.status().ToString());
  }
  node.taking_over = false;
  node.metadata = server->get();
  process->Own(std::shared_ptr<MetadataServer>(*std::move(server)));
  auto backup = std::make_shared<NoBackup>();
  process->Own(backup);
  front->Serve(*node.metadata, *node.metadata, *backup, member);
  cluster->last_boot_ = cluster->world_.clock().Now();
  cluster->world_.Trace("%s serves", process->name());
}

Task<void> Cluster::AwaitEnd(Cluster* cluster, Process* process, int i) {
  Node& node = cluster->nodes_[Index(i)];
  Status why = co_await node.member->AwaitEnd();
  if (!node.stopping) cluster->BeginAnew(i, process, why);
}

}  // namespace nacre::sim
