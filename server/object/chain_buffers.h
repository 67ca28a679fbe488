// Memory for changes on their way between the members of chains, beside the pool that clients' calls use.
//
// A server may be the head of one OST's chain and the second member of another's, whose head is the next
// server: if both kinds of work shared one pool, each server could wait for pages of the other while what it
// holds is what that one waits for. So there is a pool for each step of the way, and whoever holds pages of
// one step waits only for those of later ones. Made when they are first used. Thread-safe.
#pragma once

#include <array>
#include <memory>
#include <mutex>

#include "server/object/pool.h"

namespace nacre::ost {

enum class ChainStep : size_t { kOutOfHead, kIntoSecond, kOutOfSecond, kIntoThird };

class ChainBuffers {
 public:
  // The most that one change may have, in blocks: a call's part of a pool.
  static constexpr uint64_t kMostBlocks = 512;

  StatusOr<std::shared_ptr<BufferPool>> At(ChainStep step, Transport* transport) {
    std::lock_guard lock(mutex_);
    std::shared_ptr<BufferPool>& pool = pools_[static_cast<size_t>(step)];
    if (pool != nullptr) return pool;
    ASSIGN_OR_RETURN(pool, BufferPool::Create(kBytes, transport));
    return pool;
  }

 private:
  static constexpr uint64_t kBytes = 8 * kMostBlocks * kBlockSize;  // Admission gives a call an eighth

  std::mutex mutex_;
  std::array<std::shared_ptr<BufferPool>, 4> pools_;
};

}  // namespace nacre::ost
