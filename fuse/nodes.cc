#include "fuse/nodes.h"

#include "common/random.h"

namespace nacre::fuse {
namespace {

constexpr uint64_t kTabled = uint64_t{1} << 63;

bool IsPlain(const Fid& fid) { return fid.version == 0 && fid.sequence < (uint64_t{1} << 31); }
uint64_t PlainNode(const Fid& fid) { return fid.sequence << 32 | fid.object; }

}  // namespace

uint64_t NodeTable::Refer(const Fid& fid) {
  if (IsPlain(fid)) return PlainNode(fid);
  std::lock_guard lock(mutex_);
  auto [it, fresh] = by_fid_.try_emplace(fid, 0);
  if (fresh) it->second = kTabled | ++next_;
  Entry& entry = by_node_[it->second];
  entry.fid = fid;
  ++entry.lookups;
  return it->second;
}

std::optional<uint64_t> NodeTable::Find(const Fid& fid) const {
  if (IsPlain(fid)) return PlainNode(fid);
  std::lock_guard lock(mutex_);
  auto it = by_fid_.find(fid);
  if (it == by_fid_.end()) return std::nullopt;
  return it->second;
}

Fid NodeTable::Get(uint64_t node) const {
  if ((node & kTabled) == 0) return {node >> 32, static_cast<uint32_t>(node), 0};
  std::lock_guard lock(mutex_);
  auto it = by_node_.find(node);
  return it == by_node_.end() ? Fid{} : it->second.fid;
}

void NodeTable::Forget(uint64_t node, uint64_t lookups) {
  if ((node & kTabled) == 0) return;
  std::lock_guard lock(mutex_);
  auto it = by_node_.find(node);
  if (it == by_node_.end()) return;
  if (it->second.lookups > lookups) {
    it->second.lookups -= lookups;
    return;
  }
  by_fid_.erase(it->second.fid);
  by_node_.erase(it);
}

uint64_t NodeTable::Ino(const Fid& fid) {
  if (IsPlain(fid)) return PlainNode(fid);
  uint64_t low = uint64_t{fid.object} << 32 | fid.version;
  return kTabled | SeededRandom(fid.sequence ^ SeededRandom(low).Next()).Next();
}

size_t NodeTable::table_size() const {
  std::lock_guard lock(mutex_);
  return by_node_.size();
}

}  // namespace nacre::fuse
