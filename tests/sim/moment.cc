// When faults come: at any time, or where something is decided. A mistake in the order of two steps shows
// only if a fault comes between them, and what was promised is tested hardest right behind the promise; by
// the clock alone mostly nothing is under way. So some faults wait until an application has been answered
// that something lasts, or until a server's log is between two steps, and while they wait nobody pauses.

#include "tests/sim/scenario.h"

namespace nacre::sim {
namespace {

constexpr Duration kMomentWait = 60ms;  // for a moment that does not come
constexpr Duration kMomentBehind = 3ms;
constexpr uint64_t kMostPromises = 4;
constexpr uint64_t kMostLogSteps = 20;

}  // namespace

void Scenario::AwaitMoment() {
  workload_.Hurry(true);
  switch (moments_.Below(8)) {
    case 0:
    case 1:
      AwaitPromise(Promise::kSynced);
      break;
    case 2:
      AwaitPromise(Promise::kClosed);
      break;
    case 3:
      AwaitPromise(Promise::kReplaced);
      break;
    case 4:
    case 5:
      AwaitLogStep(static_cast<int>(moments_.Below(static_cast<uint64_t>(cluster_.client(0)))));
      break;
    default:  // any time
      break;
  }
  workload_.Hurry(false);
}

// Until applications have been answered so a few times more, and at most some messages longer.
void Scenario::AwaitPromise(Promise promise) {
  const uint64_t upto = workload_.promised(promise) + 1 + moments_.Below(kMostPromises);
  world_.RunUntil([&] { return workload_.promised(promise) >= upto || failed(); }, kMomentWait);
  if (moments_.OneIn(2))
    Work(Duration(static_cast<int64_t>(moments_.Below(static_cast<uint64_t>(kMomentBehind.count())))));
}

// Until this server's logs have come so many steps further: its commits and syncs are under way.
void Scenario::AwaitLogStep(int server) {
  const uint64_t upto = cluster_.log_steps(server) + 1 + moments_.Below(kMostLogSteps);
  world_.RunUntil([&] { return cluster_.log_steps(server) >= upto || failed(); }, kMomentWait);
}

}  // namespace nacre::sim
