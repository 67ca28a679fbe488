// In whose name a request is made.
#pragma once

#include "client/filesystem.h"

namespace nacre::client {

// The MDS is to do it in this caller's name.
void SetCaller(const Caller& caller, proto::MetadataRequest* request);

}  // namespace nacre::client
