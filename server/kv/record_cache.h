// Records of the store in memory, bounded, least recently used ones dropped first. Thread-safe.
//
// A writer announces a record before its commit (BeginWrite) and ends with the new value (EndWrite). In
// between nobody is answered from the cache and no reader may insert what it has read, so that the cache
// never goes back to an older value.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <list>
#include <memory>
#include <mutex>
#include <utility>

namespace nacre {

// A key has operator== and AbslHashValue, or what absl::Hash knows.
template <typename Key, typename Value>
class RecordCache {
 public:
  using Pointer = std::shared_ptr<const Value>;

  // For an owner who knows something of records that are not here. Called with a lock of the cache held.
  struct Hooks {
    // Returns the value of a record that the cache lacks; null if that is not known.
    std::function<Pointer(const Key&)> missing;
    // Hears that a record is not here any more, for want of room.
    std::function<void(const Key&)> evicted;
  };

  explicit RecordCache(size_t capacity, Hooks hooks = {})
      : shard_capacity_(std::max<size_t>(capacity / kShards, 1)), hooks_(std::move(hooks)) {}

  // Null: not known. *ticket is for Insert of what is then read from the store.
  Pointer Find(const Key& key, uint64_t* ticket) {
    Shard& shard = ShardOf(key);
    std::lock_guard lock(shard.mutex);
    *ticket = shard.writes;
    auto it = shard.slots.find(key);
    if (it == shard.slots.end()) return hooks_.missing ? hooks_.missing(key) : nullptr;
    if (it->second.value == nullptr) return nullptr;
    shard.lru.splice(shard.lru.begin(), shard.lru, it->second.place);
    return it->second.value;
  }

  // Does nothing when a writer has come in between.
  void Insert(const Key& key, Pointer value, uint64_t ticket) {
    Shard& shard = ShardOf(key);
    std::lock_guard lock(shard.mutex);
    if (shard.writes != ticket) return;
    Slot& slot = shard.slots[key];
    if (slot.writers == 0) Store(&shard, key, &slot, std::move(value));
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
      Store(&shard, key, &slot, std::move(value));
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
    std::list<Key> lru;    // newest first
    std::list<Key> spare;  // places, to be used again

    void Drop(Slot* slot) {
      if (slot->value == nullptr) return;
      spare.splice(spare.begin(), lru, slot->place);
      slot->value = nullptr;
    }
  };

  void Store(Shard* shard, const Key& key, Slot* slot, Pointer value) {
    shard->Drop(slot);
    if (shard->spare.empty()) shard->spare.emplace_front();
    shard->lru.splice(shard->lru.begin(), shard->spare, shard->spare.begin());
    slot->place = shard->lru.begin();
    *slot->place = key;
    slot->value = std::move(value);
    if (shard->lru.size() <= shard_capacity_) return;
    if (hooks_.evicted) hooks_.evicted(shard->lru.back());
    shard->slots.erase(shard->lru.back());
    shard->spare.splice(shard->spare.begin(), shard->lru, std::prev(shard->lru.end()));
  }

  // By other bits of the hash than those by which a shard's map tells its keys apart.
  Shard& ShardOf(const Key& key) { return shards_[(absl::Hash<Key>{}(key) >> 32) % kShards]; }

  const size_t shard_capacity_;
  const Hooks hooks_;
  std::array<Shard, kShards> shards_;
};

}  // namespace nacre
