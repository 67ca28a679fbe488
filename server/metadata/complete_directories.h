// The directories all of whose entries are in the cache of buckets (tables.h): made since the server started,
// and nothing of them has been evicted since, or was committed with an unknown outcome. A name that the cache
// lacks in such a directory does not exist, so a new name in it costs no look into the store. Thread-safe.
#pragma once

#include <absl/container/flat_hash_set.h>

#include <mutex>

#include "common/ids.h"

namespace nacre::mds {

class CompleteDirectories {
 public:
  // It is about to be made, and has no entries.
  void Add(const Fid& directory) {
    std::lock_guard lock(mutex_);
    if (directories_.size() == kMost) directories_.clear();
    directories_.insert(directory);
  }

  // It is gone, or the cache may lack something of it.
  void Remove(const Fid& directory) {
    std::lock_guard lock(mutex_);
    directories_.erase(directory);
  }

  bool Has(const Fid& directory) const {
    std::lock_guard lock(mutex_);
    return directories_.contains(directory);
  }

 private:
  static constexpr size_t kMost = 65536;

  mutable std::mutex mutex_;
  absl::flat_hash_set<Fid> directories_;
};

}  // namespace nacre::mds
