#include "client/mdt_room.h"

#include <utility>

namespace nacre::client {

bool MdtRoom::TryHold(Inode& inode, uint64_t bytes) {
  std::lock_guard lock(inode.mutex);
  if (bytes <= inode.held) return true;
  const uint64_t more = bytes - inode.held;
  if (held_.fetch_add(more) + more > promised_) {
    held_ -= more;
    return false;
  }
  inode.held = bytes;
  return true;
}

void MdtRoom::LetGo(Inode& inode) {
  const bool dirty = inode.data_cache->IsDirty(inode.data);
  std::lock_guard lock(inode.mutex);
  const bool untold = inode.pending.any() || inode.inline_dirty() || inode.inline_flights > 0;
  if (!inode.gone && (dirty || untold)) return;
  held_ -= std::exchange(inode.held, 0);
}

}  // namespace nacre::client
