// The transport of an MDS that is the primary of several: a call to an OSS may depend on what the MDS has
// changed before it (an object is destroyed because a file was removed), and what a takeover may take back
// must not be carried out there. So each call waits until that is kept (rpc/mds_front.h,
// Authority::WhenKept).
//
// Thread-safe.
#pragma once

#include <memory>

#include "common/clock.h"
#include "rpc/mds_front.h"
#include "transport/transport.h"

namespace nacre::replication {

// The two outlive what this returns. A call that is not sent within its timeout ends as one that is not
// answered in time; UNAVAILABLE: it never will be sent.
std::shared_ptr<Transport> NewWithheldTransport(Transport& transport, std::shared_ptr<Authority> authority,
                                                Clock& clock);

}  // namespace nacre::replication
