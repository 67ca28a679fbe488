#include "server/metadata/own_fids.h"

namespace nacre::mds {

StatusOr<bool> OwnFids::TakeNext(Tables& tables, const Fid& fid) {
  std::lock_guard lock(mutex_);
  // What is being committed at the first call was given by an earlier one, which has asked before.
  if (!highest_) {
    ASSIGN_OR_RETURN(highest_, tables.HighestObject(fid.sequence));
  }
  if (fid.object <= *highest_) return false;
  highest_ = fid.object;
  return true;
}

}  // namespace nacre::mds
