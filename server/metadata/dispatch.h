// From a request to its operation, and what the MGS tells about itself.
#pragma once

#include "server/metadata/mds.h"

namespace nacre::mds {

// EPROTO for a request without an operation, EROFS for a change from a session that is mounted read-only.
Task<Reply> Dispatch(const Op& op);

}  // namespace nacre::mds
