// The mappings of objects' blocks that were looked up or changed lately. Looking one up in the store and
// parsing it takes longer than all else that a small read of cached blocks does.
//
// For whoever has locked blocks of an object (ObjectState::locks) a chunk says of them what is committed;
// what it says of others may be a moment older. This holds because the changes of an object are told in their
// order before their locks are released, and what was looked up while something was told is not kept: it may
// be from before.
//
// Bounded: the oldest that nobody has asked for since goes first. Thread-safe.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <array>
#include <deque>
#include <mutex>
#include <utility>
#include <vector>

#include "common/ids.h"
#include "server/kv/kv_store.h"
#include "server/object/format.h"

namespace nacre::ost {

class ChunkCache {
 public:
  // Keeps `limit` chunks, some 800 bytes each; kLeast at least. The store outlives it.
  static constexpr size_t kLeast = 1024;
  ChunkCache(KvStore* store, size_t limit);

  // As LoadChunk (object_table.h).
  Status Load(const ObjectId& id, uint64_t index, Chunk* chunk);
  // The chunk has been committed so. Changes of one object are told one after the other.
  void Changed(const ObjectId& id, uint64_t index, const Chunk& chunk);
  // Nobody knows what the store holds: a commit has failed, or was done by somebody else.
  void Forget(const ObjectId& id, uint64_t index);

 private:
  using Key = std::pair<ObjectId, uint64_t>;
  struct Slot {
    Key key;
    bool referenced = false;  // since the hand last came by
    Chunk chunk;
  };
  struct Shard {
    std::mutex mutex;
    absl::flat_hash_map<Key, uint32_t> places;  // in `slots`
    std::deque<Slot> slots;                     // which do not move as it grows
    std::vector<uint32_t> free;
    size_t hand = 0;
    uint64_t changes = 0;  // that were told
  };

  Shard& ShardOf(const Key& key);
  void Enter(Shard* shard, const Key& key, const Chunk& chunk);
  uint32_t FreeSlot(Shard* shard);

  KvStore* const store_;
  std::array<Shard, 16> shards_;
  const size_t limit_;  // of each shard
};

}  // namespace nacre::ost
