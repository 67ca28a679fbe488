// Leases as nacre status shows them: how many a client holds, and who holds those of a directory. Main thread
// only.
#pragma once

#include <string>

#include "common/status.h"
#include "daemon/cli/cluster_target.h"
#include "daemon/cli/status_json.h"
#include "proto/cluster.pb.h"

namespace nacre::cli {

// "12 leases (3 for writing, 1 asked back)".
std::string LeaseCounts(const proto::SessionState& session);

// nacre status --directory: prints, and returns the exit status. Asks the MDS alone: a look at the path
// itself might have to wait for the very client that one wants to know of.
int ShowLeases(const ClusterTarget& target, const std::string& path, bool json);

// For people, a line each; and for programs.
std::vector<std::string> LeaseLines(const proto::LeasesOfReply& leases);
Json LeasesToJson(const std::string& path, const proto::LeasesOfReply& leases);

// Where a path lies, by the text of /proc/self/mountinfo alone.
struct MountedPath {
  std::string mountpoint;
  std::string path;  // from the root of what is mounted there
};
// NOT_FOUND: on no FUSE mount. `path` is absolute.
StatusOr<MountedPath> FindMount(const std::string& mountinfo, const std::string& path);

}  // namespace nacre::cli
