// Records of the store in memory, bounded, least recently used ones dropped first. Thread-safe.
//
// A writer announces a record before its commit (BeginWrite) and ends with the new value (EndWrite). In
// between nobody is answered from the cache and no reader may insert what it has read, so that the cache
// never goes back to an older value.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <algorithm>
#include <array>
#include <list>
#include <memory>
#include <mutex>

namespace nacre {

// A key has operator== and AbslHashValue, or what absl::Hash knows.
template <typename Key, typename Value>
class RecordCache {
 public:
  using Pointer = std::shared_ptr<const Value>;

  explicit RecordCache(size_t capacity) : shard_capacity_(std::max<size_t>(capacity / kShards, 1)) {}

  // Null: not here. *ticket is for Insert of what is then read from the store.
  Pointer Find(const Key& key, uint64_t* ticket) {
    Shard& shard = ShardOf(key);
    std::lock_guard lock(shard.mutex);
    *ticket = shard.writes;
    auto it = shard.slots.find(key);
    if (it == shard.slots.end() || it->second.value == nullptr) return nullptr;
    shard.lru.splice(shard.lru.begin(), shard.lru, it->second.place);
    return it->second.value;
  }

  // Does nothing when a writer has come in between.
  void Insert(const Key& key, Pointer value, uint64_t ticket) {
    Shard& shard = ShardOf(key);
    std::lock_guard lock(shard.mutex);
    if (shard.writes != ticket) return;
    Slot& slot = shard.slots[key];
    if (slot.writers == 0) shard.Store(key, &slot, std::move(value), shard_capacity_);
  }

  void BeginWrite(const Key& key) {
    Shard& shard = ShardOf(key);
    std::lock_guard lock(shard.mutex);
    ++shard.writes;
    Slot& slot = shard.slots[key];
    ++slot.writers;
    shard.Drop(&slot);
  }

  // Null: not known (removed, or the commit failed).
  void EndWrite(const Key& key, Pointer value) {
    Shard& shard = ShardOf(key);
    std::lock_guard lock(shard.mutex);
    ++shard.writes;  // who asked during the write may have read the value from before it
    Slot& slot = shard.slots[key];
    if (--slot.writers > 0) return;
    if (value == nullptr) {
      shard.slots.erase(key);
    } else {
      shard.Store(key, &slot, std::move(value), shard_capacity_);
    }
  }

 private:
  static constexpr size_t kShards = 16;
  struct Slot {
    Pointer value;  // null while it is being written
    uint32_t writers = 0;
    typename std::list<Key>::iterator place;  // in lru, where value is set
  };
  struct Shard {
    std::mutex mutex;
    uint64_t writes = 0;  // begun and ended so far
    absl::flat_hash_map<Key, Slot> slots;
    std::list<Key> lru;  // newest first

    void Drop(Slot* slot) {
      if (slot->value == nullptr) return;
      lru.erase(slot->place);
      slot->value = nullptr;
    }
    void Store(const Key& key, Slot* slot, Pointer value, size_t capacity) {
      Drop(slot);
      lru.push_front(key);
      slot->place = lru.begin();
      slot->value = std::move(value);
      if (lru.size() <= capacity) return;
      slots.erase(lru.back());
      lru.pop_back();
    }
  };

  Shard& ShardOf(const Key& key) { return shards_[absl::Hash<Key>{}(key) % kShards]; }

  const size_t shard_capacity_;
  std::array<Shard, kShards> shards_;
};

}  // namespace nacre
