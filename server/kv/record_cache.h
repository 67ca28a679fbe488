// Records of the store in memory, bounded. A hand that goes round picks what has to make room: it passes over
// a record once that was asked for since it came by last. So an answer writes to nothing but its own record.
// Thread-safe.
//
// A writer announces a record before its commit (BeginWrite) and ends with the new value (EndWrite). In
// between nobody is answered from the cache and no reader may insert what it has read, so that the cache
// never goes back to an older value.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

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
    it->second.asked = true;
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
    slot.value = nullptr;
  }

  // Null: not known (removed, or the commit failed).
  void EndWrite(const Key& key, Pointer value) {
    Shard& shard = ShardOf(key);
    std::lock_guard lock(shard.mutex);
    ++shard.writes;  // who asked during the write may have read the value from before it
    const auto slot = shard.slots.find(key);
    if (--slot->second.writers > 0) return;
    if (value != nullptr) return Store(&shard, key, &slot->second, std::move(value));
    if (slot->second.place != kNowhere) shard.free.push_back(slot->second.place);
    shard.slots.erase(slot);
  }

 private:
  static constexpr size_t kShards = 16;
  static constexpr uint32_t kNowhere = UINT32_MAX;
  struct Slot {
    Pointer value;  // null while it is being written
    uint32_t writers = 0;
    uint32_t place = kNowhere;  // of its key in `places`, once it has had a value
    bool asked = false;         // since the hand was here
  };
  struct Shard {
    std::mutex mutex;
    uint64_t writes = 0;  // begun and ended so far
    absl::flat_hash_map<Key, Slot> slots;
    std::vector<Key> places;
    std::vector<uint32_t> free;  // places whose keys are not here any more
    size_t hand = 0;             // the place that is looked at next when one is needed
  };

  // Gives the record its value, and a place if it has none.
  void Store(Shard* shard, const Key& key, Slot* slot, Pointer value) {
    slot->value = std::move(value);
    if (slot->place != kNowhere) return;
    if (shard->free.empty() && shard->places.size() >= shard_capacity_) Evict(shard);
    if (shard->free.empty()) {
      slot->place = static_cast<uint32_t>(shard->places.size());
      shard->places.push_back(key);
    } else {
      slot->place = shard->free.back();
      shard->free.pop_back();
      shard->places[slot->place] = key;
    }
  }

  // Frees a place, unless writers are at all of them. All of them are taken.
  void Evict(Shard* shard) {
    for (size_t looked = 0; looked < 2 * shard->places.size(); ++looked) {
      const size_t place = shard->hand;
      shard->hand = (place + 1) % shard->places.size();
      const auto found = shard->slots.find(shard->places[place]);
      Slot& slot = found->second;
      if (slot.writers > 0 || std::exchange(slot.asked, false)) continue;
      if (hooks_.evicted) hooks_.evicted(found->first);
      shard->slots.erase(found);
      shard->free.push_back(static_cast<uint32_t>(place));
      return;
    }
  }

  // By other bits of the hash than those by which a shard's map tells its keys apart.
  Shard& ShardOf(const Key& key) { return shards_[(absl::Hash<Key>{}(key) >> 32) % kShards]; }

  const size_t shard_capacity_;
  const Hooks hooks_;
  std::array<Shard, kShards> shards_;
};

}  // namespace nacre
