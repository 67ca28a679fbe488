// Reports who holds leases of a directory and of the files in it, and why somebody waits for them (nacre
// status --directory). For people: what it shows may have changed by the time it is read. Thread-safe.
#pragma once

#include <string>

#include "common/status.h"
#include "proto/cluster.pb.h"
#include "server/metadata/mds.h"

namespace nacre::mds {

// `path`: of the directory, from the root; symbolic links are not followed. NOT_FOUND: there is no such entry
// here; ENOTDIR: something on the way, or the last, is no directory.
StatusOr<proto::LeasesOfReply> ReportLeases(Mds& mds, const std::string& path);

}  // namespace nacre::mds
