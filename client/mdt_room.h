// Room on the MDT: for the bytes of small files, and for what is held back of these, and of sizes and times.
// The MDS promises so many
// bytes to each session, and a write is held back only within them. So it cannot fail later for want of space
// there (the OSTs' grants in targets.h are the same for objects). Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>

#include "client/inode.h"

namespace nacre::client {

// The room that a file's inode takes on the MDT when its size or times are told.
inline constexpr uint64_t kRecordRoom = 1024;

class MdtRoom {
 public:
  // The MDS has promised so many bytes, in all.
  void Promise(uint64_t bytes) { promised_ = bytes; }
  bool any() const { return promised_ > 0; }
  bool crowded() const { return held_ > promised_ / 2; }

  // Sets `bytes` aside for this file, in all. False: that is more than the MDS has promised, and nothing has
  // changed.
  bool TryHold(Inode& inode, uint64_t bytes);
  // Lets go what is set aside for this file if nothing is held back of it any more; if it has gone, nothing
  // that matters. Bytes that are dirty in the cache count, too: the time of their write may have been told
  // already, with that of others, and what their sending changes has not.
  void LetGo(Inode& inode);

  // How many bytes of a file the MDT takes, which has no objects then. 0: the MDT takes none.
  void SetInlineLimit(uint32_t bytes) { inline_limit_ = bytes; }
  uint32_t inline_limit() const { return inline_limit_; }

 private:
  std::atomic<uint64_t> promised_{0};  // proto::AttrReply
  std::atomic<uint64_t> held_{0};      // of these: the sum of all Inode::held
  std::atomic<uint32_t> inline_limit_{0};
};

}  // namespace nacre::client
