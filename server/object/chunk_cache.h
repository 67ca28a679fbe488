// The mappings of objects' blocks that were looked up or changed lately, parsed (server/kv/record_cache.h).
// Looking one up in the store took two fifths of a small read of cached blocks.
//
// A task that has locked blocks of an object (ObjectState::locks) sees of them what is committed: each change
// is announced before its commit and told after it, before those locks are released. Of other blocks a chunk
// may say what was so a moment ago. Thread-safe.
#pragma once

#include <memory>
#include <utility>

#include "common/ids.h"
#include "server/kv/kv_store.h"
#include "server/kv/record_cache.h"
#include "server/object/format.h"

namespace nacre::ost {

using ChunkPtr = std::shared_ptr<const Chunk>;

class ChunkCache {
 public:
  // Keeps `limit` chunks, some 900 bytes each; kLeast at least. The store outlives it.
  static constexpr size_t kLeast = 1024;
  ChunkCache(KvStore* store, size_t limit);

  // As LoadChunk (object_table.h), which always asks the store. Not null.
  StatusOr<ChunkPtr> Load(const ObjectId& id, uint64_t index);
  // A commit begins, and has ended, that changes the chunk. `after`: as it is now; null: nobody knows.
  void BeginChange(const ObjectId& id, uint64_t index);
  void EndChange(const ObjectId& id, uint64_t index, const Chunk* after);

 private:
  using Key = std::pair<ObjectId, uint64_t>;

  KvStore* const store_;
  RecordCache<Key, Chunk> chunks_;
};

// A walk over blocks of an object, which loads a chunk where it enters one. For one task.
class ChunkWalk {
 public:
  ChunkWalk(ChunkCache* cache, const ObjectId& id) : cache_(cache), id_(id) {}

  Status To(uint64_t block) {
    const uint64_t index = block / kChunkBlocks;
    if (chunk_ != nullptr && index == index_) return OkStatus();
    ASSIGN_OR_RETURN(chunk_, cache_->Load(id_, index));
    index_ = index;
    return OkStatus();
  }
  // Of the block that it has come to.
  const ChunkPtr& chunk() const { return chunk_; }

 private:
  ChunkCache* const cache_;
  const ObjectId id_;
  uint64_t index_ = 0;
  ChunkPtr chunk_;
};

}  // namespace nacre::ost
