// Exclusive locks on FIDs for coroutines, first come first served. Thread-safe. A set is taken in ascending
// order, so that two operations never wait for each other; whoever holds a set takes no further one of the
// same FidLocks.
//
// Memory: only FIDs that are locked at the moment have an entry.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <algorithm>
#include <array>
#include <deque>
#include <mutex>
#include <optional>
#include <vector>

#include "common/ids.h"
#include "common/task.h"

namespace nacre::mds {

class FidLocks {
 public:
  class [[nodiscard]] Guard {
   public:
    Guard() = default;
    Guard(FidLocks* locks, std::vector<Fid> fids) : locks_(locks), fids_(std::move(fids)) {}
    Guard(Guard&& other) noexcept
        : locks_(std::exchange(other.locks_, nullptr)), fids_(std::move(other.fids_)) {}
    Guard& operator=(Guard&& other) noexcept {
      Release();
      locks_ = std::exchange(other.locks_, nullptr);
      fids_ = std::move(other.fids_);
      return *this;
    }
    ~Guard() { Release(); }

    void Release() {
      if (locks_ != nullptr) std::exchange(locks_, nullptr)->Unlock(fids_);
    }
    bool Holds(const Fid& fid) const { return std::find(fids_.begin(), fids_.end(), fid) != fids_.end(); }

   private:
    FidLocks* locks_ = nullptr;
    std::vector<Fid> fids_;
  };

  // Repeated and empty FIDs count once and not at all.
  Task<Guard> Lock(std::vector<Fid> fids);

  // Nothing: somebody has it, or waits for it.
  std::optional<Guard> TryLock(const Fid& fid);

  bool IsHeld(const Fid& fid);

  void PlantUnlocked() { waits_ = false; }  // MetadataOptions

 private:
  static constexpr size_t kShards = 16;
  struct Shard {
    std::mutex mutex;
    absl::flat_hash_map<Fid, std::deque<OneShot<Unit>>> held;
  };

  Shard& ShardOf(const Fid& fid) { return shards_[absl::Hash<Fid>{}(fid) % kShards]; }
  // Nothing: the lock is ours; else it is when the OneShot is set.
  std::optional<OneShot<Unit>> TakeOrQueue(const Fid& fid);
  void Unlock(const std::vector<Fid>& fids);

  bool waits_ = true;
  std::array<Shard, kShards> shards_;
};

}  // namespace nacre::mds
