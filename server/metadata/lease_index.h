// Which resource each lease is of, by its id, and which leases each session has. The leases themselves are
// LeaseTable's. Thread-safe, and calls nobody: it may be asked with any mutex held.
#pragma once

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include <mutex>
#include <optional>
#include <vector>

#include "common/ids.h"

namespace nacre::mds {

class LeaseIndex {
 public:
  struct Place {
    Fid resource;
    SessionId session = 0;
  };

  explicit LeaseIndex(uint64_t first_id) : next_id_(first_id) {}

  // Returns the id of the new lease, which none has had since the start.
  uint64_t Add(const Place& place);
  // Enters one that has an id from before a restart. False: there is one of that id.
  bool Restore(uint64_t id, const Place& place);
  void Remove(uint64_t id);

  std::optional<Place> Find(uint64_t id) const;
  size_t HeldBy(SessionId session) const;
  std::vector<uint64_t> IdsOf(SessionId session) const;  // ascending

 private:
  mutable std::mutex mutex_;
  uint64_t next_id_;
  absl::flat_hash_map<uint64_t, Place> places_;
  absl::flat_hash_map<SessionId, absl::flat_hash_set<uint64_t>> by_session_;
};

}  // namespace nacre::mds
