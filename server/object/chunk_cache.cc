#include "server/object/chunk_cache.h"

#include <algorithm>
#include <memory>

#include "server/object/object_table.h"

namespace nacre::ost {

ChunkCache::ChunkCache(KvStore* store, size_t limit) : store_(store), chunks_(std::max(limit, kLeast)) {}

StatusOr<ChunkPtr> ChunkCache::Load(const ObjectId& id, uint64_t index) {
  const Key key{id, index};
  uint64_t ticket = 0;
  if (ChunkPtr known = chunks_.Find(key, &ticket)) return known;
  auto chunk = std::make_shared<Chunk>();
  RETURN_IF_ERROR(LoadChunk(store_, id, index, chunk.get()));
  chunks_.Insert(key, chunk, ticket);
  return chunk;
}

void ChunkCache::BeginChange(const ObjectId& id, uint64_t index) { chunks_.BeginWrite({id, index}); }

void ChunkCache::EndChange(const ObjectId& id, uint64_t index, const Chunk* after) {
  chunks_.EndWrite({id, index}, after == nullptr ? nullptr : std::make_shared<const Chunk>(*after));
}

}  // namespace nacre::ost
