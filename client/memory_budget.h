// The memory that a client uses for its knowledge of files (inodes, the names in directories, the bytes of
// small files), and the limit of it. (File data in objects has an arena of its own, DataCache.)
//
// Every object that takes such memory counts it here; InodeTable drops something when the limit is passed.
// Thread-safe.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace nacre::client {

class MemoryBudget {
 public:
  explicit MemoryBudget(uint64_t limit) : limit_(limit) {}
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;

  // As much as there is for file data. At least enough for a tree of usual size, and no more than can be
  // looked through when a lease is given up.
  static uint64_t LimitBeside(uint64_t cache_bytes) {
    return std::clamp<uint64_t>(cache_bytes, 64 << 20, 512 << 20);
  }

  void CountInodes(int64_t bytes) { Count(inodes_, bytes); }
  void CountNames(int64_t bytes) { Count(names_, bytes); }
  void CountContents(int64_t bytes) { Count(contents_, bytes); }

  uint64_t names() const { return names_; }
  uint64_t contents() const { return contents_; }
  uint64_t bytes() const { return inodes_ + names_ + contents_; }

  bool Exceeded() const { return bytes() > limit_; }
  // The bytes of small files give way before attributes and names do: one request brings them back when the
  // file is opened. But a quarter of the budget is theirs.
  bool ContentsGoFirst() const { return contents_ > limit_ / 4; }
  // Whether so much has been let go since this was true the last time that the allocator should give back
  // what it keeps of it (ReturnFreeMemory). It keeps that in several arenas, each of them for some threads:
  // memory that one thread lets go is not what another one gets, and each arena would grow to the whole
  // budget.
  bool MuchWasLetGo() {
    constexpr uint64_t kWorthIt = 16 << 20;
    uint64_t bytes = let_go_;
    return bytes >= std::max(limit_ / 4, kWorthIt) && let_go_.compare_exchange_strong(bytes, 0);
  }
  // More names of one directory are not kept.
  uint64_t most_names() const { return limit_ / 4; }

 private:
  void Count(std::atomic<uint64_t>& kind, int64_t bytes) {
    kind += static_cast<uint64_t>(bytes);
    if (bytes < 0) let_go_ += static_cast<uint64_t>(-bytes);
  }

  const uint64_t limit_;
  std::atomic<uint64_t> inodes_{0};
  std::atomic<uint64_t> names_{0};
  std::atomic<uint64_t> contents_{0};
  std::atomic<uint64_t> let_go_{0};
};

}  // namespace nacre::client
