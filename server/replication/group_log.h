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

// Changes that are made together. The first of an epoch is a group of its own, which has the history with it.
struct Group {
  Position previous;  // of a store to which they are made
  Position position;  // of one that has them
  std::vector<KvBatch::Op> ops;
  uint64_t bytes = 0;  // of keys and values

  bool begins_epoch() const { return position.epoch != previous.epoch; }
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

  // Returns the changes that a store with this position lacks first, as one group: as many groups as have
  // `max_bytes` together, and at least one. Null: the log does not have them.
  GroupPtr After(Position position, uint64_t max_bytes = 0) const {
    std::lock_guard lock(mutex_);
    auto after = [](Position at, const GroupPtr& group) { return at < group->previous; };
    auto end = std::upper_bound(groups_.begin(), groups_.end(), position, after);
    if (end == groups_.begin() || (*std::prev(end))->previous != position) return nullptr;
    const auto first = std::prev(end);
    uint64_t bytes = (*first)->bytes;
    for (; end != groups_.end() && !(*first)->begins_epoch() && !(*end)->begins_epoch(); ++end) {
      if (bytes + (*end)->bytes > max_bytes) break;
      bytes += (*end)->bytes;
    }
    return end - first == 1 ? *first : Together(first, end);
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
  using Iterator = std::deque<GroupPtr>::const_iterator;

  static GroupPtr Together(Iterator begin, Iterator end) {
    auto all = std::make_shared<Group>();
    all->previous = (*begin)->previous;
    for (auto it = begin; it != end; ++it) {
      all->position = (*it)->position;
      all->bytes += (*it)->bytes;
      all->ops.insert(all->ops.end(), (*it)->ops.begin(), (*it)->ops.end());
    }
    return all;
  }
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
