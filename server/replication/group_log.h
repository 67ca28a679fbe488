// The newest groups of changes in memory, for members that come back and lack only them. Bounded: the oldest
// go first. Thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "server/kv/kv_store.h"
#include "server/replication/position.h"

namespace nacre::replication {

// Changes that are made together.
struct Group {
  Position previous;  // of a store to which they are made
  Position position;  // of one that has them
  std::vector<KvBatch::Op> ops;
  uint64_t bytes = 0;  // of keys and values
};
using GroupPtr = std::shared_ptr<const Group>;

class GroupLog {
 public:
  explicit GroupLog(uint64_t max_bytes) : max_bytes_(max_bytes) {}

  void Add(GroupPtr group) {
    std::lock_guard lock(mutex_);
    bytes_ += group->bytes + sizeof(Group);
    groups_.push_back(std::move(group));
    while (bytes_ > limit() && groups_.size() > 1) {
      bytes_ -= groups_.front()->bytes + sizeof(Group);
      groups_.pop_front();
    }
  }

  // The one that a store with this position lacks first; null: it is not here.
  GroupPtr After(Position position) const {
    std::lock_guard lock(mutex_);
    auto after = [](Position at, const GroupPtr& group) { return at < group->previous; };
    auto it = std::upper_bound(groups_.begin(), groups_.end(), position, after);
    if (it == groups_.begin() || (*std::prev(it))->previous != position) return nullptr;
    return *std::prev(it);
  }

  void Clear() {
    std::lock_guard lock(mutex_);
    groups_.clear();
    bytes_ = 0;
  }

  // While one of these lives, for somebody who gets a whole store and then what was changed meanwhile, this
  // many times as much is kept.
  static constexpr uint64_t kWhileCopying = 16;
  class Hold {
   public:
    explicit Hold(GroupLog& log) : log_(log) { log_.AddHolds(1); }
    ~Hold() { log_.AddHolds(-1); }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

   private:
    GroupLog& log_;
  };

 private:
  void AddHolds(int holds) {
    std::lock_guard lock(mutex_);
    holds_ += holds;
  }
  uint64_t limit() const { return holds_ > 0 ? max_bytes_ * kWhileCopying : max_bytes_; }

  const uint64_t max_bytes_;
  mutable std::mutex mutex_;
  std::deque<GroupPtr> groups_;  // by position
  uint64_t bytes_ = 0;
  int holds_ = 0;
};

}  // namespace nacre::replication
