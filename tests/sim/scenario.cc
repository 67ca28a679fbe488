#include "tests/sim/scenario.h"

#include <cerrno>

#include "client/layout_text.h"
#include "rpc/convert.h"
#include "server/cluster/ost_record.h"
#include "server/kv/kv_pages.h"
#include "server/metadata/check.h"
#include "server/metadata/keys.h"
#include "server/object/check.h"
#include "server/object/format.h"

namespace nacre::sim {
namespace {

// Returns a member's objects: each one's version, its size and the checksums of its blocks.
std::map<ObjectId, std::string> ContentsOf(KvStore& store) {
  std::map<ObjectId, std::string> contents;
  (void)ForEachEntry(store, "O", [&](const KvEntry& entry) -> Status {
    ASSIGN_OR_RETURN(const ObjectId id, ost::ParseObjectKey(entry.key));
    ASSIGN_OR_RETURN(const ost::ObjectRecord record, ost::ParseObjectRecord(entry.value));
    contents[id] =
        absl::StrFormat("version %d.%d of %d bytes:", record.group_generation, record.version, record.size);
    return OkStatus();
  });
  (void)ForEachEntry(store, "E", [&](const KvEntry& entry) -> Status {
    ASSIGN_OR_RETURN(const ost::ExtentPlace place, ost::ParseExtentKey(entry.key));
    ost::Chunk chunk;
    RETURN_IF_ERROR(ost::ParseChunk(entry.value, &chunk));
    for (uint32_t i = 0; i < ost::kChunkBlocks; ++i) {
      if (!chunk.is_mapped(i)) continue;
      const std::string block = chunk.is_written(i) ? absl::StrFormat("%08x", chunk.crc[i]) : "unwritten";
      absl::StrAppend(&contents[place.object], " ", place.chunk * ost::kChunkBlocks + i, "=", block);
    }
    return OkStatus();
  });
  return contents;
}

// Every block of one OST, and its objects for the comparison with the MDT (null: without it).
Task<Status> CheckOst(OstDevices devices, mds::ObjectCheck* objects) {
  Status listed;
  ost::CheckOptions options;
  options.verify_data = true;
  options.on_object = [&listed, objects, index = devices.index](const ost::CheckedObject& object) {
    if (objects == nullptr) return;
    proto::ListedObject found;
    *found.mutable_object() = ToProto(object.id);
    *found.mutable_parent() = ToProto(object.parent);
    found.set_size(object.size);
    found.set_blocks(object.blocks);
    listed.Update(objects->AddObject(index, found));
  };
  auto report = co_await ost::CheckOst(devices, std::move(options));
  CO_RETURN_IF_ERROR(report.status());
  if (!report->problems.empty()) co_return ErrnoError(EUCLEAN, report->problems.front().text);
  co_return listed;
}

Task<Status> FirstProblem(Task<StatusOr<mds::CheckReport>> check) {
  auto report = co_await std::move(check);
  CO_RETURN_IF_ERROR(report.status());
  co_return report->clean() ? OkStatus() : ErrnoError(EUCLEAN, report->problems.front());
}

bool NothingLost(const FileChange& change) { return !change.acknowledged; }

}  // namespace

Shape ChooseShape(Random& random, const RunOptions& options) {
  Shape shape;
  ClusterOptions& cluster = shape.cluster;
  cluster.clients = random.OneIn(3) ? 1 : 2 + static_cast<int>(random.Below(2));
  cluster.clients = std::max(cluster.clients, options.clients);
  cluster.osses = 1 + static_cast<int>(random.Below(2));
  cluster.osts_per_oss = 1 + static_cast<int>(random.Below(2));
  cluster.metadata.inline_limit = random.OneIn(3) ? 0 : 16 << 10;
  cluster.metadata.leases = !random.OneIn(8);
  cluster.metadata.session_timeout = 6s;
  cluster.metadata.recovery_window = 8s;
  cluster.metadata.revoke_timeout = 12s;  // an OSS that restarts and a partition together are less
  cluster.object.pool_bytes = random.OneIn(2) ? 1 << 20 : 64 << 20;
  cluster.client.kernel_cache = 200ms;
  cluster.client.quiet = 5ms;
  cluster.client.file_peace = 10ms;
  if (!options.plain) cluster.metadata.peace = random.OneIn(2) ? 20ms : 2ms;
  cluster.client.retry.call_timeout = 2s;
  cluster.client.caching = !random.OneIn(8);
  cluster.client.cache_bytes = random.OneIn(3) ? 1 << 20 : 64 << 20;
  // Then there is little for what is known, too: what is not in use goes all the time.
  if (cluster.client.cache_bytes == 1 << 20) cluster.client.known_bytes = 64 << 10;
  cluster.client.dirty_bytes = random.OneIn(3) ? 256 << 10 : 16 << 20;
  if (!options.plain) cluster.slow_blocks_one_in = 10;
  SwitchOn(options.plant, &cluster);
  const char* layouts[] = {"", "-c -1 -S 64K", "-c 2 -S 64K",
                           "-E 64K -c 1 -S 64K -E 256K -c 2 -S 64K -E -1 -c -1 -S 128K"};
  shape.layout = layouts[random.Below(4)];
  shape.workload.sequential = random.OneIn(3);
  shape.workload.workers = 1 + static_cast<int>(random.Below(4));
  shape.faults.break_one_in = random.OneIn(3) ? 0 : random.OneIn(2) ? 400 : 60;
  shape.faults.corrupt_one_in = random.OneIn(4) ? 100 : 0;
  shape.cluster.clocks_step = random.OneIn(3);
  shape.workload.saves = !options.plain;
  if (!options.plain && random.OneIn(2)) shape.workload.homes = cluster.clients;
  const bool together = !options.plain && shape.workload.homes == 0 && cluster.clients > 1;
  SeededRandom rows(options.seed);  // draws nothing of `random`
  shape.workload.own_files = together && rows.OneIn(2);
  shape.workload.in_rows = shape.workload.own_files || (together && rows.OneIn(2));
  // The MDS has room for hardly a record beside its store. Draws nothing of `random` either.
  if (SeededRandom(~options.seed).OneIn(2)) cluster.metadata.record_bytes = 16 << 10;
  shape.workload.exact_times = !shape.cluster.clocks_step;
  shape.events = 2 + static_cast<int>(random.Below(4));
  if (options.copies > 1) {
    cluster.copies = options.copies;
    cluster.osses += options.copies - 1;
    if (!options.head_reads) cluster.client.spread_reads_from = 1;
  }
  if (options.mdses > 1) {
    cluster.mdses = options.mdses;
    // A client that asks an MDS that does not answer asks the next one only after seconds
    // (client/session.cc), and must not be evicted for that.
    cluster.metadata.session_timeout = 25s;
    cluster.metadata.recovery_window = 25s;
    cluster.metadata.revoke_timeout = 40s;
    // With few bytes who comes back is mostly given the whole store.
    cluster.member.log_bytes = random.OneIn(2) ? 64 << 20 : 4 << 10;
    shape.etcd.max_delay = random.OneIn(2) ? 1ms : 100ms;
    shape.etcd.late_one_in = random.OneIn(2) ? 0 : 20;
    shape.etcd.lose_request_one_in = shape.etcd.lose_answer_one_in = random.OneIn(2) ? 0 : 20;
    shape.etcd.lose_hint_one_in = random.OneIn(2) ? 0 : 2;
  }
  if (options.scrub) {
    cluster.object.scrub_every = 1s;
    cluster.object.scrub_bytes_per_second = random.OneIn(2) ? 0 : 1 << 20;
  }
  return shape;
}

Scenario::Scenario(World& world, const RunOptions& options)
    : world_(world),
      only_(options.event),
      ahead_(options.ahead),
      plain_(options.plain),
      copies_(options.copies),
      scrubs_(options.scrub),
      differed_(DifferingObjects()),
      moments_(~options.seed),
      shape_(ChooseShape(world.random(), options)),
      network_(world),
      cluster_(world, network_, shape_.cluster),
      workload_(world, cluster_, model_, shape_.workload) {
  if (!options.growth) return;
  mover_.emplace(world, cluster_, workload_, options.seed);
  rebalances_ = options.rebalance;
  model_.LetFilesMove();
}

Scenario::~Scenario() { world_.KillAll(); }

Duration Scenario::UpTo(Duration limit) {
  return Duration(static_cast<int64_t>(world_.random().Below(static_cast<uint64_t>(limit.count()) + 1)));
}

void Scenario::Run() {
  world_.Trace("%d clients, %d OSSes of %d OSTs, '%s', %d workers%s, inline %d, leases %d, caching %d",
               shape_.cluster.clients, shape_.cluster.osses, shape_.cluster.osts_per_oss, shape_.layout,
               shape_.workload.workers, shape_.workload.sequential ? " in turn" : "",
               shape_.cluster.metadata.inline_limit, shape_.cluster.metadata.leases,
               shape_.cluster.client.caching);
  Start();
  for (int i = 0; i < shape_.events && !failed(); ++i) {
    Work(50ms + UpTo(world_.random().OneIn(4) ? Duration(4s) : Duration(600ms)));
    if (!failed()) Happen(PickKind());
    if (failed() || plain_ || !only_.empty() || !moments_.OneIn(3)) continue;
    Work(50ms + Duration(static_cast<int64_t>(moments_.Below(300'000'000))));
    if (!failed()) Happen(PickEnd());
  }
  if (!failed()) Work(300ms);
  if (!failed()) Finish();
}

void Scenario::Start() {
  for (int node = 0; node < cluster_.nodes(); ++node) cluster_.Boot(node);
  if (!WaitReady("at the start")) return;
  Work(2s);  // the OSSes make themselves known
  if (!shape_.layout.empty()) {
    const std::string layout = shape_.layout;
    Task<Status> set = cluster_.filesystem(0).SetXattr(Root(), kRootFid, kLayoutXattr, layout, 0);
    if (!Await(cluster_.process(cluster_.client(0)), std::move(set), "setting the layout").ok()) return;
  }
  if (shape_.workload.sequential) model_.RememberSteps();
  model_.Remember(world_.clock().Now());
  network_.faults() = shape_.faults;
  if (shape_.cluster.mdses > 1) cluster_.etcd().SetFaults(shape_.etcd);
  if (mover_) mover_->Start(rebalances_);
  ResumeClients();
}

void Scenario::Work(Duration time) {
  world_.RunUntil([this] { return failed(); }, time);
}

bool Scenario::WaitReady(const char* why) {
  if (world_.RunUntil([this] { return cluster_.AllReady() || failed(); }, kPatience) && !failed())
    return true;
  if (failed()) return false;
  std::string missing;
  for (int node = 0; node < cluster_.nodes(); ++node) {
    if (!cluster_.ready(node)) missing += absl::StrFormat(" node %d", node);
  }
  if (shape_.cluster.mdses > 1) absl::StrAppend(&missing, " ", cluster_.CopiesText());
  world_.Fail(absl::StrFormat("hang: not ready %s:%s", why, missing));
  return false;
}

void Scenario::BootDown() {
  for (int node = 0; node < cluster_.nodes(); ++node) {
    if (!cluster_.up(node)) cluster_.Boot(node);
  }
}

// Gives work to every client.
void Scenario::ResumeClients() {
  workload_.Resume();
  for (int i = 0; i < shape_.cluster.clients; ++i) workload_.Start(i);
}

bool Scenario::Quiesce() {
  workload_.Pause();
  if (world_.RunUntil([this] { return workload_.Idle() || failed(); }, kPatience)) return !failed();
  if (!failed()) world_.Fail("hang: operations do not end");
  return false;
}

// Until the MDS has no more sessions than so many: those of dead clients are gone. The others.
std::set<SessionId> Scenario::WaitEvicted(int clients) {
  const auto most = static_cast<size_t>(clients);
  auto living = std::make_shared<std::optional<std::set<SessionId>>>();
  const auto gone = [&] { return *living && (*living)->size() <= most; };
  for (Duration waited{0}; !gone() && waited < kPatience && !failed(); waited += 1s) {
    Work(1s);
    if (!cluster_.serves()) continue;
    Spawn(cluster_.process(cluster_.mds())->executor(), cluster_.metadata().GetStatus(),
          [living](const proto::ClusterStatus& status) {
            living->emplace();
            for (const proto::SessionState& session : status.sessions()) (*living)->insert(session.id());
          });
  }
  if (!gone()) world_.Fail("hang: dead sessions are not evicted");
  return living->value_or(std::set<SessionId>());
}

// Until each file is as long as what dead clients have written there makes it. An OST that was not reached
// when its client was evicted is asked later (server/metadata/writer_recovery.h).
void Scenario::WaitSizes(const std::set<SessionId>& living) {
  auto unsettled = [&] {
    for (int ost = 0; ost < cluster_.osts(); ++ost) {
      const std::vector<int> in_sync = InSync(ost);
      if (in_sync.empty()) return true;
      const std::string prefix = ost::GrowthPrefix(0);
      auto notes = cluster_.member(ost, in_sync.front())->kv.Scan(prefix, PrefixEnd(prefix), SIZE_MAX);
      if (!notes.ok()) return true;
      for (const KvEntry& note : *notes) {
        auto growth = ost::ParseGrowthKey(note.key);
        if (!growth.ok() || !living.contains(growth->session)) return true;
      }
    }
    return false;
  };
  for (Duration waited{0}; unsettled() && waited < kPatience && !failed(); waited += 1s) Work(1s);
  if (!failed() && unsettled()) world_.Fail("hang: the sizes that dead clients have left are not taken");
}

// The task's result; it runs in this process while nothing else is looked at.
Status Scenario::Await(Process* process, Task<Status> task, const char* what) {
  auto result = std::make_shared<std::optional<Status>>();
  Spawn(process->executor(), std::move(task), [result](Status status) { *result = std::move(status); });
  world_.RunUntil([&] { return result->has_value() || failed(); }, kPatience);
  if (!result->has_value()) *result = ErrnoError(ETIMEDOUT, "hang");
  if (!(*result)->ok()) world_.Fail(absl::StrFormat("%s: %s", what, (*result)->ToString()));
  return **result;
}

// Reads everything through a random mount and compares. Nothing else runs.
void Scenario::Settle(const Model::Losses& losses) {
  const int index = static_cast<int>(world_.random().Below(static_cast<uint64_t>(shape_.cluster.clients)));
  ObservedTree tree;
  Process* process = cluster_.process(cluster_.client(index));
  if (!Await(process, Walk(&cluster_.filesystem(index), &tree), "reading everything").ok()) return;
  std::string wrong = model_.Settle(tree, losses);
  if (!wrong.empty()) return world_.Fail("afterwards: " + wrong);
  model_.Remember(world_.clock().Now());
  world_.Trace("settled: %d inodes", tree.size());
}

// Everything is read, stopped, checked on its disks, started and read again.
void Scenario::Finish() {
  if (!Quiesce()) return;
  Model::Losses losses;
  losses.may_be_lost = NothingLost;
  if (!failed()) Settle(losses);
  network_.faults().break_one_in = 0;
  for (int i = 0; i < shape_.cluster.clients && !failed(); ++i) {
    workload_.Dies(i);
    cluster_.Shutdown(cluster_.client(i), kPatience);
  }
  Work(5s);  // deleted files' objects go in the background
  EndMoves();
  if (shape_.cluster.mdses > 1) CheckCopies("at the end");
  for (int node = cluster_.client(0) - 1; node >= 0 && !failed(); --node) {
    if (node != cluster_.mds()) cluster_.Shutdown(node, kPatience);
  }
  if (!failed()) cluster_.Shutdown(cluster_.mds(), kPatience);
  if (!failed()) CheckStores();
  if (failed()) return;
  BootDown();
  if (!WaitReady("after the end")) return;
  Settle(losses);
}

// The checkers of the servers: each store on its own, then the MDT against the OSTs.
void Scenario::CheckStores() {
  if (DifferingObjects() != differed_)
    return world_.Fail("a scrub has found a member with something else than the head");
  mds::ObjectCheck objects(cluster_.mdt());
  Process* checker = world_.Start(cluster_.nodes(), "checker");
  for (int i = 0; i < cluster_.osts() && !failed(); ++i) CheckMembers(checker, i, &objects);
  if (!failed()) {
    Task<Status> check = FirstProblem(mds::CheckMdt(cluster_.mdt(), false));
    (void)Await(checker, std::move(check), "the checker of the MDT");
  }
  if (!failed() && !orphans_allowed_) {
    Task<Status> check = FirstProblem(objects.Finish(false));
    (void)Await(checker, std::move(check), "the MDT against its OSTs");
  }
  world_.Kill(checker);
}

// The OSSes of the members that are in sync, the head first, as the MDT has it. A process that it has not
// heard of may have missed what came before: as_they_run leaves its members out.
std::vector<int> Scenario::InSync(int ost, bool as_they_run) {
  auto value = cluster_.mdt().Get(cluster::OstKey(static_cast<OstIndex>(ost)));
  if (!value.ok()) return {};
  auto record = cluster::ParseOst(*value);
  if (!record.ok()) return {};
  std::vector<int> in_sync;
  for (const cluster::OstMember& member : record->members) {
    for (int i = 0; i < shape_.cluster.osses; ++i) {
      if (!member.in_sync() || member.address != absl::StrFormat("sim:oss%d", i)) continue;
      if (as_they_run && member.instance != cluster_.instance(i)) continue;
      Cluster::Disk* disk = cluster_.member(ost, i);
      auto stored = disk->kv.Get(ost::kSuperblockKey);
      if (!stored.ok()) continue;
      auto superblock = ost::ParseSuperblock(*stored);
      if (superblock.ok() && superblock->uuid == member.uuid) in_sync.push_back(i);
    }
  }
  return in_sync;
}

// Whether every OST has a member in sync on another OSS.
bool Scenario::ServesWithout(int oss) {
  for (int ost = 0; ost < cluster_.osts(); ++ost) {
    std::vector<int> others = InSync(ost);
    std::erase(others, oss);
    if (others.empty()) return false;
  }
  return true;
}

// All members of every OST.
bool Scenario::WaitInSync(const char* why) {
  auto in_sync = [this] {
    for (int ost = 0; ost < cluster_.osts(); ++ost)
      if (InSync(ost, /*as_they_run=*/true).size() < static_cast<size_t>(copies_)) return false;
    return true;
  };
  for (Duration waited{0}; !in_sync() && waited < kPatience && !failed(); waited += 500ms) Work(500ms);
  if (!failed() && !in_sync())
    world_.Fail(absl::StrFormat("hang: not all members of the OSTs are in sync %s", why));
  return !failed();
}

// Each member on its own; those in sync have the same, and the MDT knows the head's.
void Scenario::CheckMembers(Process* checker, int ost, mds::ObjectCheck* objects) {
  const std::vector<int> in_sync = InSync(ost);
  if (in_sync.empty()) return world_.Fail(absl::StrFormat("OST %d has no member in sync", ost));
  std::map<ObjectId, std::string> of_head;
  for (int i : cluster_.MembersOf(ost)) {
    const bool head = i == in_sync.front();
    OstDevices devices;
    devices.index = static_cast<OstIndex>(ost);
    devices.store = &cluster_.member(ost, i)->kv;
    devices.blocks = cluster_.member(ost, i)->blocks.get();
    devices.directory = absl::StrFormat("(simulated OST %d at oss%d)", ost, i);
    (void)Await(checker, CheckOst(devices, head ? objects : nullptr), "the checker of an OST");
    if (failed()) return;
  }
  for (int i : in_sync) {
    std::map<ObjectId, std::string> has = ContentsOf(cluster_.member(ost, i)->kv);
    if (i == in_sync.front()) of_head = std::move(has);
    if (i == in_sync.front() || has == of_head) continue;
    for (const auto& [id, content] : of_head) {
      if (has[id] == content) continue;
      return world_.Fail(absl::StrFormat("OST %d: object %s is %s at oss%d, %s at oss%d", ost, id.ToString(),
                                         content, in_sync.front(), has[id], i));
    }
    for (const auto& [id, content] : has) {
      if (of_head.contains(id)) continue;
      return world_.Fail(absl::StrFormat("OST %d: object %s is not at oss%d, and %s at oss%d", ost,
                                         id.ToString(), in_sync.front(), content, i));
    }
  }
}

RunResult RunSeed(const RunOptions& options) {
  World world(options.seed, options.trace);
  RunResult result;
  {
    Scenario scenario(world, options);
    scenario.Run();
    result.operations = scenario.operations();
    result.rebalanced = scenario.rebalanced();
  }
  result.failure = world.failure();
  result.trace_hash = world.trace_hash();
  result.steps = world.steps();
  result.virtual_time = world.clock().Now();
  return result;
}

}  // namespace nacre::sim
