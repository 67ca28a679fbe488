// The objects that requests work on right now, and some that they worked on lately: their records and locks.
// Bounded: what is not in use is forgotten, the oldest first. Thread-safe.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <list>
#include <memory>
#include <mutex>
#include <optional>

#include "common/ids.h"
#include "common/range_lock.h"
#include "server/kv/kv_store.h"
#include "server/object/format.h"

namespace nacre::ost {

struct ObjectState {
  explicit ObjectState(ObjectId object) : id(object) {}

  std::optional<ObjectRecord> Record() {
    std::lock_guard lock(mutex);
    return record;
  }
  void SetRecord(std::optional<ObjectRecord> changed) {
    std::lock_guard lock(mutex);
    record = std::move(changed);
  }

  // The session whose growth record (format.h) of this object stands in the store for certain; 0: none does.
  SessionId Grower() {
    std::lock_guard lock(mutex);
    return grower;
  }
  void SetGrower(SessionId session) {
    std::lock_guard lock(mutex);
    grower = session;
  }

  const ObjectId id;
  RangeLock locks;  // in blocks

  std::mutex mutex;
  bool loaded = false;
  std::optional<ObjectRecord> record;  // none: there is no such object
  SessionId grower = 0;
};

class ObjectTable {
 public:
  ObjectTable(KvStore* store, size_t limit) : store_(store), limit_(limit) {}

  // The object's state with its record loaded. DATA_LOSS if the record is malformed.
  StatusOr<std::shared_ptr<ObjectState>> Acquire(const ObjectId& id);

  size_t size() const;

 private:
  struct Entry {
    std::shared_ptr<ObjectState> state;
    std::list<ObjectId>::iterator place;
  };

  std::shared_ptr<ObjectState> Find(const ObjectId& id);
  void Shrink();

  KvStore* const store_;
  const size_t limit_;
  mutable std::mutex mutex_;
  absl::flat_hash_map<ObjectId, Entry> entries_;
  std::list<ObjectId> order_;  // least recently used first
};

// NOT_FOUND becomes an empty optional.
StatusOr<std::optional<ObjectRecord>> LoadObject(KvStore* store, const ObjectId& id);
// A missing record is a chunk without blocks. Asks the store itself, as whoever checks it must;
// ChunkCache::Load mostly need not.
Status LoadChunk(KvStore* store, const ObjectId& id, uint64_t index, Chunk* chunk);

}  // namespace nacre::ost
