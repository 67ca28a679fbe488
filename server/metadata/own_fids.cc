#include "server/metadata/own_fids.h"

namespace nacre::mds {

StatusOr<bool> OwnFids::TakeNext(Tables& tables, const Fid& fid) {
  std::lock_guard lock(mutex_);
  // The store lacks creates that are still being committed, but the first call has none of this session
  // beside it: each create calls this before it commits.
  if (!highest_) {
    ASSIGN_OR_RETURN(highest_, tables.HighestObject(fid.sequence));
  }
  if (fid.object <= *highest_) return false;
  highest_ = fid.object;
  return true;
}

}  // namespace nacre::mds
