// Inodes in memory, bounded, least recently used ones dropped first. Thread-safe.
//
// A writer announces an inode before its commit (BeginWrite) and ends with the new value (EndWrite). In
// between nobody is answered from the cache and no reader may insert what it has read, so that the cache
// never goes back to an older value.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <array>
#include <list>
#include <memory>
#include <mutex>

#include "common/ids.h"
#include "server/metadata/records.h"

namespace nacre::mds {

using InodePtr = std::shared_ptr<const Inode>;

class InodeCache {
 public:
  explicit InodeCache(size_t capacity) : shard_capacity_(std::max<size_t>(capacity / kShards, 1)) {}

  // Null: not here. *ticket is for Insert of what is then read from the store.
  InodePtr Find(const Fid& fid, uint64_t* ticket);
  // Does nothing when a writer has come in between.
  void Insert(const InodePtr& inode, uint64_t ticket);

  void BeginWrite(const Fid& fid);
  void EndWrite(const Fid& fid, InodePtr value);  // null: not known (removed, or the commit failed)

 private:
  static constexpr size_t kShards = 16;
  struct Slot {
    InodePtr inode;  // null while it is being written
    uint32_t writers = 0;
    std::list<Fid>::iterator place;  // in lru, where inode is set
  };
  struct Shard {
    std::mutex mutex;
    uint64_t writes = 0;  // begun and ended so far
    absl::flat_hash_map<Fid, Slot> slots;
    std::list<Fid> lru;  // newest first
  };

  Shard& ShardOf(const Fid& fid) { return shards_[absl::Hash<Fid>{}(fid) % kShards]; }
  static void Drop(Shard* shard, Slot* slot);
  void Store(Shard* shard, Slot* slot, InodePtr inode);

  const size_t shard_capacity_;
  std::array<Shard, kShards> shards_;
};

}  // namespace nacre::mds
