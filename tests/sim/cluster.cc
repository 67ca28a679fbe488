#include "tests/sim/cluster.h"

namespace nacre::sim {

Cluster::Cluster(World& world, Network& network, ClusterOptions options)
    : world_(world),
      network_(network),
      options_(std::move(options)),
      disk_random_(world.random().Next()),
      nodes_(static_cast<size_t>(nodes()) + 1) {
  for (int i = 0; i < options_.mdses; ++i) {
    nodes_[Index(i)].name = options_.mdses == 1 ? "mds" : absl::StrFormat("mds%d", i);
    nodes_[Index(i)].copy = i > 0;
    AddDisk(nodes_[Index(i)], 0, 0);
  }
  if (options_.mdses > 1) {
    etcd_random_.emplace(world_.random().Next());
    Process* etcd = world_.Start(visitor() + 2, "etcd");
    etcd_ = std::make_unique<coordination::MemEtcd>(world_.clock(), *etcd_random_, etcd->executor());
  }
  for (int i = 0; i < options_.osses; ++i) nodes_[oss(i)].name = absl::StrFormat("oss%d", i);
  for (int index = 0; index < osts(); ++index) {
    for (int i : MembersOf(index)) AddDisk(nodes_[oss(i)], static_cast<OstIndex>(index), options_.ost_blocks);
  }
  for (int i = 0; i < options_.clients; ++i) nodes_[client(i)].name = absl::StrFormat("client%d", i);
  nodes_[visitor()].name = "visitor";
}

void Cluster::AddDisk(Node& node, OstIndex index, uint64_t block_count) {
  MemBlockStoreOptions blocks;
  blocks.clock = &world_.clock();
  blocks.random = &disk_random_;
  blocks.slow_one_in = options_.slow_blocks_one_in;
  auto disk = std::make_unique<Disk>();
  disk->index = index;
  disk->kv.SetSyncHook([this, &node] { return SlowSync(this, &node); });
  disk->kv.SetCommitPause([this, &node] { return SlowCommit(this, &node); });
  if (block_count > 0) disk->blocks = std::make_unique<MemBlockStore>(block_count, blocks);
  node.stores.push_back(std::move(disk));
}

std::vector<int> Cluster::MembersOf(int index) const {
  std::vector<int> members;
  for (int i = 0; i < options_.copies; ++i)
    members.push_back((index / options_.osts_per_oss + i) % options_.osses);
  return members;
}

uint64_t Cluster::instance(int oss_number) const {
  const ObjectServer* server = nodes_[Index(oss(oss_number))].object;
  return server == nullptr ? 0 : server->instance();
}

Cluster::Disk* Cluster::member(int index, int oss_number) {
  for (const auto& disk : nodes_[oss(oss_number)].stores) {
    if (disk->index == static_cast<OstIndex>(index)) return disk.get();
  }
  return nullptr;
}

void Cluster::Wipe(int number) {
  Node& node = nodes_[Index(number)];
  world_.Trace("the disks of %s are replaced by empty ones", node.name);
  const auto old = std::exchange(node.stores, {});
  for (const auto& disk : old) AddDisk(node, disk->index, disk->blocks ? options_.ost_blocks : 0);
  node.copy = is_mds(number);
  node.formatted = false;
}

Cluster::~Cluster() { world_.KillAll(); }

Task<Status> Cluster::SlowSync(Cluster* cluster, Node* node) {
  ++node->log_steps;
  co_await cluster->world_.clock().Sleep(std::chrono::microseconds(100 + cluster->disk_random_.Below(3000)));
  ++node->log_steps;
  co_return OkStatus();
}

// Mostly shorter than a message takes, now and then as long as many.
Task<void> Cluster::SlowCommit(Cluster* cluster, Node* node) {
  ++node->log_steps;
  const uint64_t most = cluster->disk_random_.OneIn(20) ? 3000 : 100;
  co_await cluster->world_.clock().Sleep(std::chrono::microseconds(cluster->disk_random_.Below(most)));
}

bool Cluster::AllReady() const {
  for (int node = 0; node < nodes(); ++node) {
    if (!ready(node)) return false;
  }
  return options_.mdses == 1 || CopiesInSync();
}

void Cluster::Boot(int number) {
  Node& node = nodes_[number];
  constexpr int64_t kHour = 3600;
  int64_t step = 0;
  if (options_.clocks_step) step = static_cast<int64_t>(world_.random().Below(2 * kHour)) - kHour;
  node.process = world_.Start(number, absl::StrFormat("%s.%d", node.name, ++node.starts), step);
  if (number < client(0)) last_boot_ = world_.clock().Now();
  Executor executor = node.process->executor();
  if (is_mds(number)) {
    return Spawn(executor,
                 options_.mdses == 1 ? BootMds(this, node.process) : BootMember(this, node.process, number));
  }
  if (number < client(0)) return Spawn(executor, BootOss(this, node.process, number - oss(0)));
  Spawn(executor, BootClient(this, node.process, number - client(0)));
}

Duration Cluster::HeldUpSince() const {
  constexpr Duration kPauses = 10s;
  const Duration now = world_.clock().Now();
  return now - last_boot_ < kPauses ? held_up_since_ : now;
}

void Cluster::NoteHeldUp(Duration since) {
  held_up_since_ = since;
  last_boot_ = world_.clock().Now();
}

void Cluster::Crash(int number, Loss loss) {
  Node& node = nodes_[number];
  if (number < client(0)) held_up_since_ = HeldUpSince();
  const uint64_t instance = node.object != nullptr ? node.object->instance() : 0;
  if (node.process != nullptr) {
    world_.Trace("%s of %s", loss == Loss::kPower ? "loss of power" : "crash", node.name);
    world_.Kill(std::exchange(node.process, nullptr));
  }
  if (loss == Loss::kProcess && instance != 0) StartWitness(number, instance);
  if (loss == Loss::kPower) EndWitnesses(number);
  node.ready = node.taking_over = node.stopping = false;
  node.filesystem = nullptr;
  node.member = nullptr;
  node.metadata = nullptr;
  node.object = nullptr;
  if (loss == Loss::kPower) ++node.boots;
  for (auto& disk : node.stores) {
    if (loss == Loss::kPower) {
      disk->kv.LosePower(disk_random_);
      if (disk->blocks) disk->blocks->LosePower(disk_random_);
    } else {
      disk->kv.CrashProcess();
      if (disk->blocks) disk->blocks->CrashProcess(disk_random_);
    }
  }
}

void Cluster::EndWitnesses(int number) {
  Node& node = nodes_[Index(number)];
  while (!node.witnesses.empty()) EndWitness(node.witnesses.back());
}

// Now and then what ended the OSS has ended its witness, too.
void Cluster::StartWitness(int number, uint64_t instance) {
  if (world_.random().OneIn(4)) return;
  Node& node = nodes_[Index(number)];
  Process* process =
      world_.Start(number, absl::StrFormat("%s.%d's witness", node.name, node.starts), /*wall_offset=*/0);
  node.witnesses.push_back(process);
  Spawn(process->executor(), Witness(this, process, instance));
}

// It may be slow, and tell of it when the next process has registered already.
Task<void> Cluster::Witness(Cluster* cluster, Process* process, uint64_t instance) {
  if (process->random().OneIn(4))
    co_await process->clock().Sleep(std::chrono::milliseconds(process->random().Below(5000)));
  Status told = co_await TellOfEnd(cluster->ChannelToMdses(process), process->clock(), instance);
  cluster->world_.Trace("%s: %s", process->name(), told.ok() ? "the MGS knows" : "the MGS could not be told");
  cluster->world_.clock().At(0s, [cluster, process] { cluster->EndWitness(process); });
}

void Cluster::EndWitness(Process* process) {
  if (std::erase(nodes_[Index(process->node())].witnesses, process) != 0) world_.Kill(process);
}

Task<void> Cluster::BootMds(Cluster* cluster, Process* process) {
  Node& node = cluster->nodes_[0];
  std::shared_ptr<Transport> transport = NewTransport(cluster->network_, process);
  process->Own(transport);
  MetadataEnvironment environment{process->executor(), process->clock(), process->random(),
                                  node.stores[0]->kv, *transport};
  MetadataOptions options = cluster->options_.metadata;
  options.boot = node.boot();
  auto server = co_await MetadataServer::Start(environment, options);
  if (!server.ok()) co_return cluster->world_.Fail("the MDS does not start: " + server.status().ToString());
  node.metadata = server->get();
  process->Own(std::shared_ptr<MetadataServer>(*std::move(server)));
  Service service;
  service.process = process;
  service.metadata = node.metadata;
  service.cluster = node.metadata;
  Status listening = cluster->network_.Add(cluster->MdsAddress(0), std::move(service));
  if (!listening.ok()) cluster->world_.Fail(listening.ToString());
  node.ready = true;
}

Task<void> Cluster::BootOss(Cluster* cluster, Process* process, int i) {
  Node& node = cluster->nodes_[cluster->oss(i)];
  std::shared_ptr<Transport> transport = NewTransport(cluster->network_, process);
  process->Own(transport);
  ObjectEnvironment environment{process->executor(), process->clock(), process->random(), *transport,
                                cluster->ChannelToMdses(process)};
  std::vector<OstDevices> devices;
  for (size_t k = 0; k < node.stores.size(); ++k) {
    OstDevices device;
    device.index = node.stores[k]->index;
    device.copies = static_cast<uint32_t>(cluster->options_.copies);
    device.store = &node.stores[k]->kv;
    device.blocks = node.stores[k]->blocks.get();
    device.directory = absl::StrFormat("(simulated OST %d)", device.index);
    devices.push_back(std::move(device));
  }
  ObjectOptions options = cluster->options_.object;
  options.listen = options.advertise = absl::StrFormat("sim:%s", node.name);
  options.boot = node.boot();
  auto server = co_await ObjectServer::Start(environment, std::move(devices), options);
  if (!server.ok()) {
    co_return cluster->world_.Fail(
        absl::StrFormat("%s does not start: %s", node.name, server.status().ToString()));
  }
  node.object = server->get();
  process->Own(std::shared_ptr<ObjectServer>(*std::move(server)));
  Spawn(process->executor(), AwaitFailedFlush(cluster, process, cluster->oss(i)));
  node.ready = true;
}

Task<void> Cluster::AwaitFailedFlush(Cluster* cluster, Process* process, int number) {
  const OneShot<Status> begin_anew = cluster->nodes_[Index(number)].object->begin_anew();
  cluster->BeginAnew(number, process, co_await begin_anew.Wait());
}

Task<void> Cluster::BootClient(Cluster* cluster, Process* process, int i) {
  Node& node = cluster->nodes_[cluster->client(i)];
  std::shared_ptr<Transport> transport = NewTransport(cluster->network_, process);
  process->Own(transport);
  client::Environment environment{process->executor(), process->clock(), process->random(), *transport,
                                  cluster->ConnectorToMdses(process)};
  client::Options options = cluster->options_.client;
  options.name = process->name();
  while (true) {
    auto mounted = co_await client::FileSystem::Mount(environment, options);
    if (mounted.ok()) {
      node.filesystem = mounted->get();
      process->Own(std::shared_ptr<client::FileSystem>(*std::move(mounted)));
      node.ready = true;
      cluster->world_.Trace("%s has mounted", process->name());
      co_return;
    }
    cluster->world_.Trace("%s cannot mount: %s", process->name(), mounted.status().ToString());
    co_await cluster->world_.clock().Sleep(500ms);
  }
}

Task<void> Cluster::Stop(Cluster* cluster, Node* node, OneShot<Unit> done) {
  Status stopped;
  if (node->filesystem != nullptr) stopped = co_await node->filesystem->Unmount();
  if (node->metadata != nullptr) stopped = co_await node->metadata->Stop();
  if (node->member != nullptr && stopped.ok()) stopped = co_await node->member->Stop();
  if (node->object != nullptr) stopped = co_await node->object->Stop();
  if (!stopped.ok()) cluster->world_.Fail(node->name + " does not stop cleanly: " + stopped.ToString());
  done.Set({});
}

bool Cluster::Shutdown(int number, Duration limit) {
  Node& node = nodes_[number];
  if (!ready(number) || node.taking_over) {
    Crash(number, Loss::kProcess);
    return true;
  }
  OneShot<Unit> done;
  node.stopping = true;
  Spawn(node.process->executor(), Stop(this, &node, done));
  const bool stopped = world_.RunUntil([&] { return done.IsSet(); }, limit);
  if (!stopped) world_.Fail(node.name + " does not stop");
  Crash(number, Loss::kProcess);
  return stopped;
}

}  // namespace nacre::sim
