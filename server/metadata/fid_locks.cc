#include "server/metadata/fid_locks.h"

#include <algorithm>
#include <optional>

namespace nacre::mds {

Task<FidLocks::Guard> FidLocks::Lock(std::vector<Fid> fids) {
  std::sort(fids.begin(), fids.end());
  fids.erase(std::unique(fids.begin(), fids.end()), fids.end());
  if (!fids.empty() && !fids.front()) fids.erase(fids.begin());
  if (!waits_) co_return Guard(nullptr, std::move(fids));
  for (const Fid& fid : fids) {
    std::optional<OneShot<Unit>> turn = TakeOrQueue(fid);
    if (turn.has_value()) co_await turn->Wait();
  }
  co_return Guard(this, std::move(fids));
}

std::optional<FidLocks::Guard> FidLocks::TryLock(const Fid& fid) {
  if (waits_) {
    Shard& shard = ShardOf(fid);
    std::lock_guard lock(shard.mutex);
    if (!shard.held.try_emplace(fid).second) return std::nullopt;
  }
  return Guard(waits_ ? this : nullptr, std::vector<Fid>(1, fid));
}

std::optional<OneShot<Unit>> FidLocks::TakeOrQueue(const Fid& fid) {
  Shard& shard = ShardOf(fid);
  std::lock_guard lock(shard.mutex);
  auto [it, free] = shard.held.try_emplace(fid);
  if (free) return std::nullopt;
  return it->second.emplace_back();
}

bool FidLocks::IsHeld(const Fid& fid) {
  Shard& shard = ShardOf(fid);
  std::lock_guard lock(shard.mutex);
  return shard.held.contains(fid);
}

void FidLocks::Unlock(const std::vector<Fid>& fids) {
  for (const Fid& fid : fids) {
    Shard& shard = ShardOf(fid);
    std::unique_lock lock(shard.mutex);
    auto it = shard.held.find(fid);
    if (it->second.empty()) {
      shard.held.erase(it);
      continue;
    }
    OneShot<Unit> next = std::move(it->second.front());
    it->second.pop_front();
    lock.unlock();
    next.Set({});
  }
}

}  // namespace nacre::mds
