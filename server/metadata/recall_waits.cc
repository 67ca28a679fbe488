#include "server/metadata/recall_waits.h"

#include <algorithm>
#include <utility>

namespace nacre::mds {

RecallWaits::Wait::Wait(RecallWaits& waits, Known known) : waits_(waits) {
  std::lock_guard lock(waits_.mutex_);
  place_ = waits_.waits_.insert(waits_.waits_.end(), std::move(known));
}

RecallWaits::Wait::~Wait() {
  std::lock_guard lock(waits_.mutex_);
  waits_.waits_.erase(place_);
}

std::vector<RecallWaits::Known> RecallWaits::For(const std::vector<Fid>& resources) const {
  std::vector<Known> found;
  std::lock_guard lock(mutex_);
  for (const Known& wait : waits_) {
    const bool concerns = std::ranges::any_of(
        wait.resources, [&](const Fid& fid) { return std::ranges::find(resources, fid) != resources.end(); });
    if (concerns) found.push_back(wait);
  }
  return found;
}

}  // namespace nacre::mds
