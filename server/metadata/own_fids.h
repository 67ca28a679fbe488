// Which FIDs a session has given to inodes that it made itself: those of its own sequence
// (id_allocator.h). Thread-safe; owned by the session.
//
// An inode that is there already must not be written over by one with the same FID. Clients count upwards, so
// nearly every FID that they give lies beyond all that the MDT has of their sequence, and needs no look into
// the MDT: that look was a tenth of the work of a create.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>

#include "common/ids.h"
#include "common/status.h"
#include "server/metadata/tables.h"

namespace nacre::mds {

class OwnFids {
 public:
  // True: no inode has the FID, nor any behind it in its sequence, and from now on it counts as given. False:
  // the MDT has to be asked whether an inode has it. `fid` is of the session's own sequence. Errors: those of
  // the store, which is asked by the first call.
  StatusOr<bool> TakeNext(Tables& tables, const Fid& fid);

 private:
  std::mutex mutex_;
  std::optional<uint64_t> highest_;  // object number that may have been given; none: not known yet
};

}  // namespace nacre::mds
