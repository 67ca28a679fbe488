// The asker's side of a backup over gRPC. Thread-safe; blocks.
#pragma once

#include <functional>
#include <string>

#include "common/status.h"

namespace nacre {

// `take` is given the pieces of the backup in their order, and about how long all will be (0: not known); an
// error of its ends the call and is returned. OK: they were all. UNAVAILABLE: the MDS at the address is away,
// or went away; it has no deadline, as an MDT may be large. Of several addresses (grpc_channel.h) those that
// answer UNAVAILABLE before the first piece are passed over.
using TakePiece = std::function<Status(const std::string& data, uint64_t expected_bytes)>;
Status FetchBackup(const std::string& addresses, const TakePiece& take);

}  // namespace nacre
