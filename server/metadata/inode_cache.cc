#include "server/metadata/inode_cache.h"

namespace nacre::mds {

InodePtr InodeCache::Find(const Fid& fid, uint64_t* ticket) {
  Shard& shard = ShardOf(fid);
  std::lock_guard lock(shard.mutex);
  *ticket = shard.writes;
  auto it = shard.slots.find(fid);
  if (it == shard.slots.end() || it->second.inode == nullptr) return nullptr;
  shard.lru.splice(shard.lru.begin(), shard.lru, it->second.place);
  return it->second.inode;
}

void InodeCache::Insert(const InodePtr& inode, uint64_t ticket) {
  Shard& shard = ShardOf(inode->fid);
  std::lock_guard lock(shard.mutex);
  if (shard.writes != ticket) return;
  Slot& slot = shard.slots[inode->fid];
  if (slot.writers > 0) return;
  Store(&shard, &slot, inode);
}

void InodeCache::BeginWrite(const Fid& fid) {
  Shard& shard = ShardOf(fid);
  std::lock_guard lock(shard.mutex);
  ++shard.writes;
  Slot& slot = shard.slots[fid];
  ++slot.writers;
  Drop(&shard, &slot);
}

void InodeCache::EndWrite(const Fid& fid, InodePtr value) {
  Shard& shard = ShardOf(fid);
  std::lock_guard lock(shard.mutex);
  ++shard.writes;  // who asked during the write may have read the value from before it
  Slot& slot = shard.slots[fid];
  --slot.writers;
  if (value != nullptr && slot.writers == 0) return Store(&shard, &slot, std::move(value));
  if (slot.writers == 0) shard.slots.erase(fid);
}

void InodeCache::Drop(Shard* shard, Slot* slot) {
  if (slot->inode == nullptr) return;
  shard->lru.erase(slot->place);
  slot->inode = nullptr;
}

void InodeCache::Store(Shard* shard, Slot* slot, InodePtr inode) {
  Drop(shard, slot);
  shard->lru.push_front(inode->fid);
  slot->place = shard->lru.begin();
  slot->inode = std::move(inode);
  if (shard->lru.size() <= shard_capacity_) return;
  shard->slots.erase(shard->lru.back());
  shard->lru.pop_back();
}

}  // namespace nacre::mds
