// Leases run out by the clock, each side counting by its own steady clock: whoever holds one counts from the
// moment at which he *sent* what was answered, and stops `lease` later; whoever granted it counts from the
// moment at which he *received* that, and takes the lease for ended only WithDrift(lease) later. So the
// holder has always stopped first, however long the messages took, as long as no clock runs a tenth slower
// than the other. This holds for a client's leases and the MDS (ConnectReply.lease_ms), and for the right of
// an OSS to serve clients and the MGS (RegisterOssReply.lease_ms), and for space that an OST has granted.
// Pure functions.
#pragma once

#include "common/clock.h"

namespace nacre {

constexpr Duration WithDrift(Duration lease) { return lease + lease / 10; }

// For how long a client may count on the space that an OST has granted to its session (client/targets.h). The
// OST takes it back when it has not heard of the session for WithDrift of that.
inline constexpr Duration kGrantLease = std::chrono::seconds(55);

}  // namespace nacre
