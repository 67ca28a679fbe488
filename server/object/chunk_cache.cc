#include "server/object/chunk_cache.h"

#include <algorithm>

#include "server/object/object_table.h"

namespace nacre::ost {

ChunkCache::ChunkCache(KvStore* store, size_t limit)
    : store_(store), limit_(std::max(limit, kLeast) / shards_.size()) {}

// Those that follow each other in an object lie in different shards.
ChunkCache::Shard& ChunkCache::ShardOf(const Key& key) {
  return shards_[(key.first.sequence + key.first.stripe + key.second) % shards_.size()];
}

Status ChunkCache::Load(const ObjectId& id, uint64_t index, Chunk* chunk) {
  const Key key{id, index};
  Shard& shard = ShardOf(key);
  uint64_t changes = 0;
  {
    std::lock_guard lock(shard.mutex);
    const auto found = shard.places.find(key);
    if (found != shard.places.end()) {
      Slot& slot = shard.slots[found->second];
      slot.referenced = true;
      *chunk = slot.chunk;
      return OkStatus();
    }
    changes = shard.changes;
  }
  RETURN_IF_ERROR(LoadChunk(store_, id, index, chunk));
  std::lock_guard lock(shard.mutex);
  if (shard.changes == changes) Enter(&shard, key, *chunk);
  return OkStatus();
}

void ChunkCache::Changed(const ObjectId& id, uint64_t index, const Chunk& chunk) {
  const Key key{id, index};
  Shard& shard = ShardOf(key);
  std::lock_guard lock(shard.mutex);
  ++shard.changes;
  const auto found = shard.places.find(key);
  if (found != shard.places.end()) shard.slots[found->second].chunk = chunk;
}

void ChunkCache::Forget(const ObjectId& id, uint64_t index) {
  const Key key{id, index};
  Shard& shard = ShardOf(key);
  std::lock_guard lock(shard.mutex);
  ++shard.changes;
  const auto found = shard.places.find(key);
  if (found == shard.places.end()) return;
  shard.free.push_back(found->second);
  shard.places.erase(found);
}

void ChunkCache::Enter(Shard* shard, const Key& key, const Chunk& chunk) {
  if (shard->places.contains(key)) return;  // by another reader
  const uint32_t place = FreeSlot(shard);
  Slot& slot = shard->slots[place];
  slot.key = key;
  slot.referenced = false;
  slot.chunk = chunk;
  shard->places.emplace(key, place);
}

uint32_t ChunkCache::FreeSlot(Shard* shard) {
  if (!shard->free.empty()) {
    const uint32_t place = shard->free.back();
    shard->free.pop_back();
    return place;
  }
  if (shard->slots.size() < limit_) {
    shard->slots.emplace_back();
    return static_cast<uint32_t>(shard->slots.size() - 1);
  }
  for (;;) {
    const size_t place = shard->hand;
    shard->hand = (shard->hand + 1) % shard->slots.size();
    Slot& slot = shard->slots[place];
    if (std::exchange(slot.referenced, false)) continue;
    shard->places.erase(slot.key);
    return static_cast<uint32_t>(place);
  }
}

}  // namespace nacre::ost
