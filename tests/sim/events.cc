// The faults: what happens to the cluster between two stretches of work, and what must hold after each.

#include <sys/stat.h>

#include <cerrno>

#include "tests/sim/scenario.h"

namespace nacre::sim {
namespace {

constexpr Duration kServerLoss = 1500ms;  // a loss of power takes one second, and what was under way
constexpr Duration kEarlyLag = 6s;        // how far the MDS may be behind what a client answers early

// Which changes a loss of power of a server at `lost` may take. `held_up`: since when clients may have been
// unable to send what they held back. They end with the server, or sent it right before.
std::function<bool(const FileChange&)> TakenWithPower(Duration lost, Duration held_up) {
  return [lost, held_up](const FileChange& change) {
    if (!change.acknowledged) return true;
    Duration since = lost - kServerLoss;
    if (change.lazy) since = std::min(since, held_up) - kClientLoss;
    return !change.durable && change.at >= since;
  };
}

}  // namespace

const std::vector<EventKind>& EventKinds() {
  static const std::vector<EventKind> kinds = {
      {"crash_server", 6, true, true, Needs::kNothing, &Scenario::CrashServer},
      {"crash_client", 2, true, true, Needs::kNothing, &Scenario::CrashClient},
      {"evict_client", 2, true, false, Needs::kNothing, &Scenario::EvictClient},
      {"power_loss", 2, true, true, Needs::kNothing, &Scenario::PowerLoss},
      {"oss_power_loss", 2, true, true, Needs::kNothing, &Scenario::OssLosesPower},
      {"partition", 2, true, false, Needs::kNothing, &Scenario::Partition},
      {"full_mdt", 1, true, false, Needs::kNothing, &Scenario::FullMdt},
      {"break", 4, true, false, Needs::kNothing, &Scenario::BreakSome},
      {"freeze_client", 2, true, false, Needs::kNothing, &Scenario::FreezeClient},
      {"mds_power_loss", 1, true, true, Needs::kNothing, &Scenario::MdsLosesPower},
      {"long_partition", 1, true, false, Needs::kNothing, &Scenario::LongPartition},
      {"dead_oss", 1, false, false, Needs::kNothing, &Scenario::DeadOss},
      {"failed_flush", 1, true, true, Needs::kNothing, &Scenario::FailedFlush},
      {"evict_without_oss", 1, true, false, Needs::kNothing, &Scenario::EvictWithoutOss},
      {"dead_member", 4, true, true, Needs::kChains, &Scenario::DeadMember},
      {"wiped_member", 2, true, true, Needs::kChains, &Scenario::WipedMember},
      {"members_lose_power", 2, true, true, Needs::kChains, &Scenario::MembersLosePower},
      {"bad_blocks", 4, true, false, Needs::kScrubs, &Scenario::BadBlocks},
      {"cut_off_member", 3, true, false, Needs::kMemberReads, &Scenario::CutOffMember},
      {"dead_mds", 6, true, true, Needs::kSeveralMdses, &Scenario::DeadMds},
      {"mdses_lose_power", 3, true, true, Needs::kSeveralMdses, &Scenario::MdsesLosePower},
      {"frozen_mds", 3, true, false, Needs::kSeveralMdses, &Scenario::FrozenMds},
      {"cut_off_mds", 4, true, false, Needs::kSeveralMdses, &Scenario::CutOffMds},
      {"leaderless_etcd", 2, true, false, Needs::kSeveralMdses, &Scenario::LeaderlessEtcd},
      {"wiped_mds", 2, true, true, Needs::kSeveralMdses, &Scenario::WipedMds},
  };
  return kinds;
}

void Scenario::Happen(const EventKind& kind) {
  world_.Trace("event: %s", kind.name);
  if (!plain_) AwaitMoment();
  if (!failed()) (this->*kind.happen)();
}

const EventKind& Scenario::PickKind() {
  uint64_t weights = 0;
  for (const EventKind& kind : EventKinds()) weights += Chosen(kind) ? kind.weight : 0;
  uint64_t pick = world_.random().Below(weights);
  for (const EventKind& kind : EventKinds()) {
    if (!Chosen(kind)) continue;
    if (pick < kind.weight) return kind;
    pick -= kind.weight;
  }
  return EventKinds().front();
}

// One of those that show what was under way; each as often as the others.
const EventKind& Scenario::PickEnd() {
  std::vector<const EventKind*> ends;
  for (const EventKind& kind : EventKinds()) {
    if (kind.ends && Chosen(kind)) ends.push_back(&kind);
  }
  return *ends[moments_.Below(ends.size())];
}

bool Scenario::Chosen(const EventKind& kind) const {
  if (kind.needs == Needs::kChains && copies_ == 1) return false;
  if (kind.needs == Needs::kScrubs && !scrubs_) return false;
  if (kind.needs == Needs::kMemberReads && shape_.cluster.client.spread_reads_from > 1) return false;
  if (kind.needs == Needs::kSeveralMdses && shape_.cluster.mdses == 1) return false;
  return only_.empty() ? kind.holds || ahead_ : only_ == kind.name;
}

// A server comes back with all that was acknowledged, and the applications notice nothing.
void Scenario::CrashServer() {
  constexpr Loss loss = Loss::kProcess;
  const int node = static_cast<int>(world_.random().Below(static_cast<uint64_t>(cluster_.client(0))));
  cluster_.Crash(node, loss);
  Work(UpTo(2s));
  if (failed()) return;
  cluster_.Boot(node);
  if (world_.random().OneIn(4)) {  // once more, in the middle of its recovery
    Work(UpTo(3s));
    if (failed()) return;
    cluster_.Crash(node, loss);
    cluster_.Boot(node);
  }
  WaitReady("after the restart of a server");
}

void Scenario::BreakSome() {
  for (int i = 0; i < 3 && !failed(); ++i) {
    const int client = cluster_.client(static_cast<int>(world_.random().Below(shape_.cluster.clients)));
    network_.Break(client, static_cast<int>(world_.random().Below(cluster_.client(0))));
    Work(UpTo(300ms));
  }
}

// Shorter than it takes to be evicted, and everybody has found everybody again before the next fault.
void Scenario::Partition() {
  const uint64_t nodes = static_cast<uint64_t>(cluster_.nodes());
  for (int i = 0; i < 2; ++i) {
    const int one = static_cast<int>(world_.random().Below(nodes)),
              other = static_cast<int>(world_.random().Below(nodes));
    network_.Cut(one, other);
    if (world_.random().OneIn(2)) network_.Cut(other, one);
  }
  Work(UpTo(1500ms));
  network_.Heal();
  const NetworkFaults faults = std::exchange(network_.faults(), NetworkFaults{});
  Work(2s);
  WaitConnected();
  network_.faults() = faults;
}

// Until every client has its stream to the MDS again: what one holds back while it has none is no older than
// the fault lasts.
void Scenario::WaitConnected() {
  auto connected = [this] {
    for (int i = 0; i < shape_.cluster.clients; ++i) {
      if (cluster_.ready(cluster_.client(i)) && !cluster_.filesystem(i).Look().connected) return false;
    }
    return true;
  };
  if (!failed() && !world_.RunUntil([&] { return connected() || failed(); }, kPatience) && !failed())
    world_.Fail("hang: a client does not find the MDS again");
}

void Scenario::OnEachClient(Task<Status> (*todo)(Workload*, ClientState*), const char* what) {
  for (int i = 0; i < shape_.cluster.clients && !failed(); ++i) {
    ClientState* client = workload_.client(i);
    if (client != nullptr) (void)Await(client->process, todo(&workload_, client), what);
  }
}

// Errors that nobody has been told of are told to the next handle of the file, whatever it does: taken here.
void Scenario::TakeAllErrors() { OnEachClient(TakeErrors, "fsync of what was lost"); }

// Of one OSS or of everything; the clients go with it.
void Scenario::PowerLoss() {
  const bool everything = shape_.workload.sequential && world_.random().OneIn(2);
  const Duration lost = world_.clock().Now(), held_up = cluster_.HeldUpSince();
  orphans_allowed_ = true;
  for (int i = 0; i < shape_.cluster.clients; ++i) {
    workload_.Dies(i);
    cluster_.Crash(cluster_.client(i), Loss::kProcess);
  }
  const int oss = static_cast<int>(world_.random().Below(static_cast<uint64_t>(shape_.cluster.osses)));
  for (int i = 0; i < shape_.cluster.osses; ++i) {
    if (everything || i == oss) cluster_.Crash(cluster_.oss(i), Loss::kPower);
  }
  for (int mds = 0; everything && mds < shape_.cluster.mdses; ++mds) cluster_.Crash(mds, Loss::kPower);
  BootDown();
  if (!Quiesce() || !WaitReady("after a loss of power")) return;
  WaitSizes(WaitEvicted(shape_.cluster.clients));
  if (failed()) return;
  Model::Losses losses;
  losses.may_be_lost = TakenWithPower(lost, held_up);
  losses.may_wait = [](const FileChange& change) { return !change.durable && change.lazy; };
  losses.early = true;
  if (everything) losses.names_after = lost - kServerLoss - kEarlyLag;
  Settle(losses);
  TakeAllErrors();
  if (!failed()) ResumeClients();
}

// And the clients live on: what they have written there and not synced may be gone. The next fsync says so,
// or it is there.
void Scenario::OssLosesPower() {
  if (!Quiesce()) return;
  const Duration lost = world_.clock().Now(), held_up = cluster_.HeldUpSince();
  const int node =
      cluster_.oss(static_cast<int>(world_.random().Below(static_cast<uint64_t>(shape_.cluster.osses))));
  orphans_allowed_ = true;
  cluster_.Crash(node, Loss::kPower);
  cluster_.Boot(node);
  if (!WaitReady("after an OSS has lost power")) return;
  Work(5s);  // the clients hear of it
  OnEachClient(SyncAll, "fsync after a loss of power");
  if (failed()) return;
  Model::Losses losses;
  losses.may_be_lost = TakenWithPower(lost, held_up);
  Settle(losses);
  TakeAllErrors();
  if (!failed()) ResumeClients();
}

// The MDS's machine, all of them, loses power and the clients live on: names and small files of the last
// second may be gone, and every handle with them. Applications close what they had open.
void Scenario::MdsLosesPower() {
  if (!shape_.workload.sequential || !Quiesce()) return;
  const Duration lost = world_.clock().Now(), held_up = cluster_.HeldUpSince();
  orphans_allowed_ = true;
  workload_.NoteDone();
  for (int mds = 0; mds < shape_.cluster.mdses; ++mds) cluster_.Crash(mds, Loss::kPower);
  Work(UpTo(2s));
  BootDown();
  if (!WaitReady("after the MDS has lost power")) return;
  Work(5s);  // the clients hear of it
  OnEachClient(GiveUpHandles, "closing after a loss of power");
  if (failed()) return;
  Model::Losses losses;
  losses.may_be_lost = TakenWithPower(lost, held_up);
  losses.early = true;
  losses.names_after = lost - kServerLoss - kEarlyLag;
  losses.repeated = true;
  Settle(losses);
  TakeAllErrors();
  if (!failed()) ResumeClients();
}

// Two nodes cannot reach each other for longer than any time-out. A client among them may be evicted; the
// others notice nothing but the wait.
void Scenario::LongPartition() {
  const uint64_t nodes = static_cast<uint64_t>(cluster_.nodes());
  const int one = static_cast<int>(world_.random().Below(nodes));
  const int other =
      static_cast<int>((static_cast<uint64_t>(one) + 1 + world_.random().Below(nodes - 1)) % nodes);
  const int first_client = cluster_.client(0);
  const int cut_client = std::max(one, other) >= first_client && std::min(one, other) < first_client
                             ? std::max(one, other) - first_client
                             : -1;
  if (cut_client >= 0) workload_.CutOff(cut_client);
  network_.Cut(one, other);
  if (!world_.random().OneIn(3)) network_.Cut(other, one);
  const Duration length = shape_.cluster.metadata.session_timeout + UpTo(30s);
  Work(length);
  network_.Heal();
  if (cut_client < 0) {
    WaitProgress("after a partition");
    Work(kClientLoss);  // what had to wait for it is sent before the next fault
    return;
  }
  Work(UpTo(3s));
  EndClient(cut_client, world_.clock().Now() - kClientLoss - length - 10s);
}

// An OSS is dead for long. Clients that do not need it go on: one that comes is taken in, finds its way and
// leaves again.
void Scenario::DeadOss() {
  const int node =
      cluster_.oss(static_cast<int>(world_.random().Below(static_cast<uint64_t>(shape_.cluster.osses))));
  cluster_.Crash(node, Loss::kProcess);
  Work(UpTo(20s));
  if (failed()) return;
  workload_.NoteVisit();
  cluster_.Boot(cluster_.visitor());
  const Duration came = world_.clock().Now();
  world_.RunUntil([this] { return cluster_.ready(cluster_.visitor()) || failed(); }, kPatience);
  if (failed()) return;
  if (!cluster_.ready(cluster_.visitor()))
    return world_.Fail("hang: no client can mount while an OSS is dead");
  world_.Trace("the visitor has waited %d ms",
               std::chrono::duration_cast<std::chrono::milliseconds>(world_.clock().Now() - came).count());
  (void)Await(cluster_.process(cluster_.visitor()), Visit(&cluster_.visiting()),
              "a visit while an OSS is dead");
  if (failed()) return;
  if (!cluster_.Shutdown(cluster_.visitor(), kPatience)) return;
  Work(world_.random().OneIn(8) ? UpTo(1h) : UpTo(60s));
  if (failed()) return;
  cluster_.Boot(node);
  if (WaitReady("after an OSS was away for long")) WaitProgress("after an OSS was away for long");
}

// A root directory can be read, and a file without bytes made and removed, whatever OST is away.
Task<Status> Scenario::Visit(client::FileSystem* filesystem) {
  client::HandlePtr none;
  auto root = co_await filesystem->Getattr(Root(), kRootFid, none);
  CO_RETURN_IF_ERROR(root.status());
  std::string name(kVisitorsName);
  auto made = co_await filesystem->Mknod(Root(), kRootFid, name, S_IFIFO | 0600, 0);
  CO_RETURN_IF_ERROR(made.status());
  std::string again(kVisitorsName);
  co_return co_await filesystem->Unlink(Root(), kRootFid, again);
}

// The MDT's disk is full when its server dies: it starts all the same, and takes its clients in again.
void Scenario::FullMdt() {
  if (!Quiesce()) return;
  for (int mds = 0; mds < shape_.cluster.mdses; ++mds) {
    cluster_.mdt_disk(mds).SetCommitHook([](const KvBatch& batch) {
      return batch.uses_reserve() ? OkStatus() : ErrnoError(ENOSPC, "the simulated disk is full");
    });
  }
  const int dead = cluster_.mds();
  cluster_.Crash(dead, Loss::kProcess);
  cluster_.Boot(dead);
  const bool ready = WaitReady("with a full MDT");
  if (ready) Work(5s);  // the OSSes register
  for (int mds = 0; mds < shape_.cluster.mdses; ++mds) cluster_.mdt_disk(mds).SetCommitHook(nullptr);
  if (ready && !failed()) ResumeClients();
}

// A disk does not flush, once, and forgets what it was to flush. Its OSS begins anew, and what had not been
// synced may be gone, as after a loss of power.
void Scenario::FailedFlush() {
  if (!Quiesce()) return;
  const Duration lost = world_.clock().Now(), held_up = cluster_.HeldUpSince();
  Cluster::Disk& disk =
      cluster_.ost(static_cast<int>(world_.random().Below(static_cast<uint64_t>(cluster_.osts()))));
  auto failed_once = std::make_shared<bool>(false);
  orphans_allowed_ = true;
  workload_.set_flush_may_fail(true);
  disk.blocks->SetFaultHook([failed_once](MemBlockStore::Operation operation, uint64_t, uint64_t) {
    if (operation != MemBlockStore::Operation::kFlush || std::exchange(*failed_once, true)) return OkStatus();
    return ErrnoError(EIO, "the simulated disk does not flush");
  });
  Work(UpTo(3s));
  disk.blocks->SetFaultHook(nullptr);
  if (failed() || !WaitReady("after a flush has failed")) return;
  Work(5s);  // the clients hear of it
  OnEachClient(SyncAll, "fsync after a flush has failed");
  if (failed() || !Quiesce()) return;
  workload_.set_flush_may_fail(false);
  Model::Losses losses;
  losses.may_be_lost = TakenWithPower(lost, held_up);
  Settle(losses);
  TakeAllErrors();
  if (!failed()) ResumeClients();
}

// All OSSes lose power, each what it had not synced, and one of them comes back when the others have gone on
// for a while: its objects may have as many changes as theirs, and others.
void Scenario::MembersLosePower() {
  if (!WaitInSync("before all OSSes lose power") || !Quiesce()) return;
  const Duration lost = world_.clock().Now(), held_up = cluster_.HeldUpSince();
  orphans_allowed_ = true;
  const int late = static_cast<int>(world_.random().Below(static_cast<uint64_t>(shape_.cluster.osses)));
  for (int i = 0; i < shape_.cluster.osses; ++i) cluster_.Crash(cluster_.oss(i), Loss::kPower);
  Work(4s);  // else who comes back first leaves the chain to one that the MGS takes to be there still
  for (int i = 0; i < shape_.cluster.osses; ++i) {
    if (i != late || !ServesWithout(late)) cluster_.Boot(cluster_.oss(i));
  }
  Work(10s);  // the others' leases end, and the clients hear of it
  OnEachClient(SyncAll, "fsync after a loss of power");
  if (failed()) return;
  Model::Losses losses;
  losses.may_be_lost = TakenWithPower(lost, held_up);
  Settle(losses);
  TakeAllErrors();
  if (failed()) return;
  ResumeClients();
  Work(UpTo(2s));
  if (failed()) return;
  BootDown();
  if (WaitReady("after all OSSes have lost power")) (void)WaitInSync("after all OSSes have lost power");
}

// Operations end again, or nothing was under way.
void Scenario::WaitProgress(const char* why, Duration limit) {
  if (failed()) return;
  const uint64_t done = workload_.done();
  if (!world_.RunUntil([&] { return workload_.done() > done || failed(); }, limit) && !failed())
    world_.Fail(absl::StrFormat("hang: nothing goes on %s", why));
}

}  // namespace nacre::sim
