// The tasks that the MDS runs by itself: syncing, watching heartbeats and sessions, ending the recovery
// window, destroying objects, draining OSTs. Every task ends soon after Mds::closed is set.
#pragma once

#include "server/metadata/mds.h"

namespace nacre::mds {

void StartBackground(const MdsPtr& mds);

}  // namespace nacre::mds
