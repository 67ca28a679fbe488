// Faults where several MDSes have copies of the MDT. As long as one of them is left nothing is lost: the
// applications go on, and notice nothing but the wait.

#include "tests/sim/scenario.h"

namespace nacre::sim {
namespace {

constexpr Duration kTakeover = 15s;  // the promises, an epoch, the sessions and OSSes that come
constexpr Duration kQuiet = 20s;     // what is under way comes to its end within

}  // namespace

// The primary mostly.
int Scenario::PickMds() {
  if (!world_.random().OneIn(4)) return cluster_.mds();
  return static_cast<int>(world_.random().Below(static_cast<uint64_t>(shape_.cluster.mdses)));
}

// Every MDS is in the set, and none is about to leave it: the primary may have asked etcd for that, which
// does it after the primary's death, too. Without that the primary may be the only one that has everything,
// and then nothing goes on without it, and what it had not synced is lost with its power.
bool Scenario::SetAtRest() { return cluster_.AllReady() && cluster_.etcd().Idle(); }

// False: the run has failed.
bool Scenario::WaitSetAtRest() {
  if (!world_.RunUntil([this] { return SetAtRest() || failed(); }, kPatience))
    world_.Fail("hang: the set of MDSes does not come to rest");
  return !failed();
}

// One serves and the others have all that it has; now and then they are compared.
void Scenario::WaitCopies(const char* why) {
  if (failed() || !WaitReady(why) || !world_.random().OneIn(3)) return;
  if (!Quiesce()) return;
  CheckCopies(why);
  if (!failed()) ResumeClients();
}

// All copies come to be the same, key by key. Nobody works meanwhile.
void Scenario::CheckCopies(const char* when) {
  const auto in_sync = [this] { return cluster_.CopiesInSync() || failed(); };
  std::string differ = "not compared";
  for (Duration waited{0}; !differ.empty() && waited < kQuiet && !failed(); waited += 200ms) {
    if (!world_.RunUntil(in_sync, kPatience) && !failed()) {
      return world_.Fail(
          absl::StrFormat("hang: not all copies are in sync %s: %s", when, cluster_.CopiesText()));
    }
    differ = cluster_.CopiesDiffer();
    if (!differ.empty()) Work(200ms);
  }
  if (!failed() && !differ.empty()) world_.Fail(absl::StrFormat("%s %s", differ, when));
}

// An MDS dies, or its machine, for a moment or for long. Then another one is primary, if it was, and
// everything goes on without it. One of the others may have missed its last words, and a change then be with
// some of them only. When it comes back, the primary may die while it still catches up.
void Scenario::DeadMds() {
  if (!WaitReady("before an MDS dies")) return;
  const Duration begin = cluster_.HeldUpSince();
  const int mds = PickMds();
  if (world_.random().OneIn(2)) {
    const int mdses = shape_.cluster.mdses;
    network_.Cut(mds, (mds + 1 + static_cast<int>(world_.random().Below(mdses - 1))) % mdses);
    Work(UpTo(500ms));  // less than it takes to leave that one out
    network_.Heal();
    if (failed()) return;
  }
  if (!WaitSetAtRest()) return;
  cluster_.Crash(mds, world_.random().OneIn(2) ? Loss::kPower : Loss::kProcess);
  if (world_.random().OneIn(2)) {
    Work(kTakeover);
    WaitProgress("beside a dead MDS");
    Work(UpTo(10s));
  } else {
    Work(UpTo(4s));
  }
  if (failed()) return;
  cluster_.NoteHeldUp(begin);
  cluster_.Boot(mds);
  if (world_.random().OneIn(3)) {
    Work(UpTo(world_.random().OneIn(2) ? 300ms : 4s));
    if (failed()) return;
    const int next = cluster_.mds();
    cluster_.Crash(next, Loss::kProcess);
    Work(UpTo(6s));
    if (failed()) return;
    cluster_.NoteHeldUp(begin);
    cluster_.Boot(next);
  }
  WaitCopies("after an MDS was dead");
}

// All of them but one, whose process may die at the same time. That one is in the set, so it has all that was
// acknowledged.
void Scenario::MdsesLosePower() {
  if (!WaitReady("before MDSes lose power") || !WaitSetAtRest()) return;
  const Duration begin = cluster_.HeldUpSince();
  const auto mdses = static_cast<uint64_t>(shape_.cluster.mdses);
  const int spared = static_cast<int>(world_.random().Below(mdses));
  const bool dies = world_.random().OneIn(2);
  std::vector<int> down;
  for (int mds = 0; mds < shape_.cluster.mdses; ++mds) {
    if (mds == spared && !dies) continue;
    cluster_.Crash(mds, mds == spared ? Loss::kProcess : Loss::kPower);
    down.insert(down.begin() + static_cast<int>(world_.random().Below(down.size() + 1)), mds);
  }
  for (int mds : down) {
    Work(UpTo(world_.random().OneIn(2) ? 100ms : 5s));
    if (failed()) return;
    cluster_.Boot(mds);
  }
  cluster_.NoteHeldUp(begin);
  WaitCopies("after MDSes have lost power");
}

// Its process stands still while its machine answers for its connections. If it was primary it is none any
// more when it runs again, and must know.
void Scenario::FrozenMds() {
  if (!WaitReady("before an MDS is frozen")) return;
  const Duration begin = cluster_.HeldUpSince();
  const int mds = PickMds();
  Process* process = cluster_.process(mds);
  world_.Trace("%s is frozen", process->name());
  process->Freeze(true);
  if (world_.random().OneIn(3)) {
    Work(kTakeover);
    WaitProgress("beside a frozen MDS");
  } else {
    Work(UpTo(6s));
  }
  if (failed()) return;
  process->Freeze(false);
  world_.Trace("%s runs again", process->name());
  cluster_.NoteHeldUp(begin);
  Work(UpTo(1s));
  WaitCopies("after an MDS was frozen");
}

// Nothing gets from an MDS to others, or from them to it: to other MDSes, to etcd, to clients and OSSes.
//
// A primary that goes on although it must not is mostly silent all the same: it lets nothing out behind a
// change that the others do not get. So now and then it is cut off wholly from those who then make another
// one primary; the clients that still reach it only read, and the others do not reach it.
void Scenario::CutOffMds() {
  if (!WaitReady("before an MDS is cut off")) return;
  const Duration begin = cluster_.HeldUpSince();
  const int mds = PickMds();
  const bool from_copies = !world_.random().OneIn(4), from_etcd = world_.random().OneIn(2),
             from_rest = world_.random().OneIn(4);
  const bool readers =
      from_copies && from_etcd && !from_rest && mds == cluster_.mds() && world_.random().OneIn(2);
  for (int i = 0; readers && i < shape_.cluster.clients; ++i) {
    if (world_.random().OneIn(2)) {
      workload_.OnlyReads(i, true);
    } else {
      network_.Cut(cluster_.client(i), mds);
      network_.Cut(mds, cluster_.client(i));
    }
  }
  for (int node = 0; node < cluster_.nodes(); ++node) {
    if (node == mds || !(cluster_.is_mds(node) ? from_copies : from_rest)) continue;
    if (!readers && world_.random().OneIn(8)) continue;
    const bool in = readers || !world_.random().OneIn(4);
    const bool out = readers || !in || !world_.random().OneIn(4);
    if (in) network_.Cut(node, mds);
    if (out) network_.Cut(mds, node);
  }
  if (from_etcd) {
    world_.Trace("cut %d -- etcd", mds);
    cluster_.CutFromEtcd(mds);
  }
  // Nobody is evicted: whoever is cut off from this one as well is so for less than that takes. The others
  // find another primary, which waits no longer for those who would stay with this one.
  const Duration longest = shape_.cluster.metadata.recovery_window + 15s;
  Work(UpTo(from_rest ? 1500ms : world_.random().OneIn(3) ? longest : 12s));
  if (failed()) return;
  for (int i = 0; i < shape_.cluster.clients; ++i) workload_.OnlyReads(i, false);
  network_.Heal();
  cluster_.HealEtcd();
  const NetworkFaults faults = std::exchange(network_.faults(), NetworkFaults{});
  cluster_.NoteHeldUp(begin);
  Work(2s);
  WaitConnected();
  network_.faults() = faults;
  WaitCopies("after an MDS was cut off");
}

// Nobody can become primary, or leave the set, for seconds; and the primary may die just then.
void Scenario::LeaderlessEtcd() {
  if (!WaitReady("before etcd has no leader") || !WaitSetAtRest()) return;
  const Duration begin = cluster_.HeldUpSince();
  const Duration away = 500ms + UpTo(8s);
  world_.Trace("etcd has no leader for %d ms",
               std::chrono::duration_cast<std::chrono::milliseconds>(away).count());
  cluster_.etcd().LoseLeader(away);
  const int mds = PickMds();
  const bool dies = !world_.random().OneIn(4);
  if (dies) {
    Work(UpTo(1s));
    cluster_.Crash(mds, world_.random().OneIn(2) && SetAtRest() ? Loss::kPower : Loss::kProcess);
  }
  Work(UpTo(12s));
  if (failed()) return;
  if (dies) cluster_.Boot(mds);
  cluster_.NoteHeldUp(begin);
  WaitCopies("after etcd had no leader");
}

// The disk of one is gone: it comes back with an empty one, and is given everything.
void Scenario::WipedMds() {
  if (!WaitReady("before an MDS loses its disk") || !WaitSetAtRest()) return;
  const Duration begin = cluster_.HeldUpSince();
  const int mds = PickMds();
  cluster_.Crash(mds, Loss::kProcess);
  cluster_.Wipe(mds);
  Work(UpTo(10s));
  if (failed()) return;
  cluster_.Boot(mds);
  cluster_.NoteHeldUp(begin);
  WaitCopies("after an MDS has lost its disk");
}

}  // namespace nacre::sim
