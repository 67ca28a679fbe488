// The effects of changes on attributes, as the MDS computes them (server/metadata/ops): for changes that are
// answered before the MDS has carried them out. Pure functions. ApplySetattr leaves it to the caller to count
// the change.
#pragma once

#include "client/filesystem.h"
#include "proto/metadata.pb.h"

namespace nacre::client {

// Of what the mknod in the request makes. `inline_data`: a file begins with its bytes in the MDT.
proto::Attr NewAttr(const Caller& caller, const proto::Attr& directory, const proto::MetadataRequest& request,
                    bool inline_data);

// The directory has `by` more entries, which may be 0 or less; `subdirectory`: they are directories. Counts
// the change.
void TouchEntries(proto::Attr* directory, const proto::Time& now, int by, bool subdirectory);

void ApplySetattr(const proto::Setattr& set, const proto::Time& now, proto::Attr* attr);

// The file after a WriteInline or UpdateSize with a time of its own. Counts the change.
void ApplyTold(const proto::MetadataRequest& request, proto::Attr* attr);

}  // namespace nacre::client
