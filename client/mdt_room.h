// Room on the MDT for what is held back of small files, and of sizes and times: the MDS promises so many
// bytes to each session, and a write is held back only within them. So it cannot fail later for want of space
// there (the OSTs' grants in targets.h are the same for objects). Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>

#include "client/inode.h"

namespace nacre::client {

class MdtRoom {
 public:
  // The MDS has promised so many bytes, in all.
  void Promise(uint64_t bytes) { promised_ = bytes; }
  bool any() const { return promised_ > 0; }
  bool crowded() const { return held_ > promised_ / 2; }

  // Sets `bytes` aside for this file, in all. False: that is more than the MDS has promised, and nothing has
  // changed.
  bool TryHold(Inode& inode, uint64_t bytes);
  // Nothing is held back of this file any more; if it has gone, nothing that matters. `dirty`: bytes of it
  // are in the cache. They count, too: the time of their write may have been told already, with that of
  // others, and what their sending changes has not.
  void LetGo(Inode& inode, bool dirty);

 private:
  std::atomic<uint64_t> promised_{0};  // proto::AttrReply
  std::atomic<uint64_t> held_{0};      // of these: the sum of all Inode::held
};

}  // namespace nacre::client
