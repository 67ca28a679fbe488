// The mappings of objects' blocks that were looked up or changed lately, parsed (server/kv/record_cache.h).
// Looking one up in the store took two fifths of a small read of cached blocks.
//
// Whoever has locked blocks of an object (ObjectState::locks) sees of them what is committed: each change is
// announced before its commit and told after it, before those locks are released. Of other blocks a chunk may
// say what was so a moment ago. Thread-safe.
#pragma once

#include <utility>

#include "common/ids.h"
#include "server/kv/kv_store.h"
#include "server/kv/record_cache.h"
#include "server/object/format.h"

namespace nacre::ost {

class ChunkCache {
 public:
  // Keeps `limit` chunks, some 900 bytes each; kLeast at least. The store outlives it.
  static constexpr size_t kLeast = 1024;
  ChunkCache(KvStore* store, size_t limit);

  // As LoadChunk (object_table.h), which always asks the store.
  Status Load(const ObjectId& id, uint64_t index, Chunk* chunk);
  // A commit begins, and has ended, that changes the chunk. `after`: as it is now; null: nobody knows.
  void BeginChange(const ObjectId& id, uint64_t index);
  void EndChange(const ObjectId& id, uint64_t index, const Chunk* after);

 private:
  using Key = std::pair<ObjectId, uint64_t>;

  KvStore* const store_;
  RecordCache<Key, Chunk> chunks_;
};

}  // namespace nacre::ost
