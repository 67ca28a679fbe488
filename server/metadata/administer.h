// Answers administrators: the state of the MDS (nacre status, nacre df), the paths of a file, the eviction of
// a client. Nothing here waits for an OST without a bound. Thread-safe.
#pragma once

#include "server/metadata/mds.h"

namespace nacre::mds {

// With each OST's space as it is now, if it answers within a second.
Task<proto::ClusterStatus> MakeStatus(MdsPtr mds);

// Returns when it is done; an eviction when the session is gone.
Task<proto::AdminReply> Administer(MdsPtr mds, proto::AdminRequest request);

}  // namespace nacre::mds
