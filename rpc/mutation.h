// Which requests change something and so carry a sequence number: retries of them are recognised, and a
// read-only session may not send them. Client and server have to agree on it.
#pragma once

#include "common/ids.h"
#include "proto/metadata.pb.h"
#include "proto/object.pb.h"

namespace nacre {

bool IsMutation(const proto::MetadataRequest& request);
bool IsMutation(const proto::ObjectRequest& request);

// The inode that a mutation names by itself; none: it names entries only.
Fid ChangedInode(const proto::MetadataRequest& request);

}  // namespace nacre
