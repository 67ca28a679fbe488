// Faults where OSTs have several members.

#include <algorithm>

#include "tests/sim/scenario.h"

namespace nacre::sim {
namespace {

constexpr Duration kBesideADeadServer = 10s;  // a client's pauses, and what one operation needs
constexpr Duration kUntilTakenOut = 10s;      // a member that cannot be reached

}  // namespace

// Whether a server that has just ended may lose what its disks have. It may have said right before that it
// has given the other member up, and have the last copy; the MGS has heard of that half a second later.
bool Scenario::MayForget(int oss) {
  Work(500ms);
  return ServesWithout(oss);
}

// A server dies, or its machine, and everything goes on without it. When it comes back it catches up.
void Scenario::DeadMember() {
  if (!WaitInSync("before a server dies")) return;
  const int oss = static_cast<int>(world_.random().Below(static_cast<uint64_t>(shape_.cluster.osses)));
  const bool with_power = world_.random().OneIn(2);
  cluster_.Crash(cluster_.oss(oss), Loss::kProcess);
  if (with_power) cluster_.EndWitnesses(cluster_.oss(oss));
  if (MayForget(oss) && with_power) cluster_.Crash(cluster_.oss(oss), Loss::kPower);
  Work(9500ms);  // until the MGS knows, and clients have found the other members
  // Unless the network has kept another member away as well, just then.
  if (ServesWithout(oss)) WaitProgress("beside a dead server", kBesideADeadServer);
  Work(UpTo(20s));
  if (failed()) return;
  cluster_.Boot(cluster_.oss(oss));
  if (WaitReady("after a server was dead")) (void)WaitInSync("after a server was dead");
}

// A member that is not the head is cut off from all but the clients, and goes on as it was. At the moment at
// which the MGS takes it out of the chain the clients stop hearing of the MDS: their map has the member
// still, which answers them, while the head takes their changes without it.
void Scenario::CutOffMember() {
  if (!WaitInSync("before a member is cut off")) return;
  const int ost = static_cast<int>(world_.random().Below(static_cast<uint64_t>(cluster_.osts())));
  const std::vector<int> members = InSync(ost);
  const int oss = members[1 + world_.random().Below(members.size() - 1)];
  for (int server = 0; server < cluster_.client(0); ++server) {
    if (server == cluster_.oss(oss)) continue;
    network_.Cut(cluster_.oss(oss), server);
    network_.Cut(server, cluster_.oss(oss));
  }
  workload_.OnlyBytes(true);  // whatever else they did would wait for the MDS
  const auto is_out = [&] { return std::ranges::count(InSync(ost), oss) == 0; };
  world_.RunUntil([&] { return failed() || is_out(); }, kUntilTakenOut);
  for (int i = 0; i < shape_.cluster.clients; ++i) {
    for (int mds = 0; mds < shape_.cluster.mdses; ++mds) network_.Cut(mds, cluster_.client(i));
  }
  Work(UpTo(1500ms));
  workload_.OnlyBytes(false);
  network_.Heal();
  const NetworkFaults faults = std::exchange(network_.faults(), NetworkFaults{});
  Work(2s);
  WaitConnected();
  network_.faults() = faults;
  if (!failed()) (void)WaitInSync("after a member was cut off");
}

// Its disks are gone: it comes back with empty ones, which are filled.
void Scenario::WipedMember() {
  if (!WaitInSync("before a server loses its disks")) return;
  const int oss = static_cast<int>(world_.random().Below(static_cast<uint64_t>(shape_.cluster.osses)));
  cluster_.Crash(cluster_.oss(oss), Loss::kProcess);
  if (MayForget(oss)) cluster_.Wipe(cluster_.oss(oss));
  Work(UpTo(15s));
  if (failed()) return;
  cluster_.Boot(cluster_.oss(oss));
  if (!WaitReady("after a server has lost its disks")) return;
  Work(6s);  // until the MGS knows
  if (!failed()) (void)WaitInSync("after a server has lost its disks");
}

}  // namespace nacre::sim
