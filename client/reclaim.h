// Makes the messages that tell an MDS again what it has lost with the stream: the client's handles, locks and
// leases.
#pragma once

#include <vector>

#include "client/inode.h"
#include "proto/metadata.pb.h"

namespace nacre::client {

// Lists what is held of these inodes, in messages of a bounded size; never none. Each handle that is named
// counts as told from then on.
std::vector<proto::Reclaim> ListHeld(const std::vector<InodePtr>& inodes);

}  // namespace nacre::client
