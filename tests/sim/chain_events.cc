// Faults where OSTs have several members.

#include "tests/sim/scenario.h"

namespace nacre::sim {
namespace {

constexpr Duration kBesideADeadServer = 10s;  // a client's pauses, and what one operation needs

}  // namespace

// A server dies, or its machine, and everything goes on without it. When it comes back it catches up.
void Scenario::DeadMember() {
  if (!WaitInSync("before a server dies")) return;
  const int oss = static_cast<int>(world_.random().Below(static_cast<uint64_t>(shape_.cluster.osses)));
  cluster_.Crash(cluster_.oss(oss), world_.random().OneIn(2) ? Loss::kPower : Loss::kProcess);
  Work(10s);  // until the MGS knows, and clients have found the other members
  // Unless the network has kept another member away as well, just then.
  if (ServesWithout(oss)) WaitProgress("beside a dead server", kBesideADeadServer);
  Work(UpTo(20s));
  if (failed()) return;
  cluster_.Boot(cluster_.oss(oss));
  if (WaitReady("after a server was dead")) (void)WaitInSync("after a server was dead");
}

// Its disks are gone: it comes back with empty ones, which are filled.
void Scenario::WipedMember() {
  if (!WaitInSync("before a server loses its disks")) return;
  const int oss = static_cast<int>(world_.random().Below(static_cast<uint64_t>(shape_.cluster.osses)));
  cluster_.Crash(cluster_.oss(oss), Loss::kProcess);
  Work(500ms);  // it may just have said that it has given the other member up, and have the last copy
  if (ServesWithout(oss)) cluster_.Wipe(cluster_.oss(oss));
  Work(UpTo(15s));
  if (failed()) return;
  cluster_.Boot(cluster_.oss(oss));
  if (!WaitReady("after a server has lost its disks")) return;
  Work(6s);  // until the MGS knows
  if (!failed()) (void)WaitInSync("after a server has lost its disks");
}

}  // namespace nacre::sim
