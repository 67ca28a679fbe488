// How a command finds the cluster that it is about, and asks its MGS. Main thread only; blocks.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "common/clock.h"
#include "common/status.h"
#include "proto/cluster.pb.h"

namespace nacre::cli {

struct ClusterTarget {
  std::string directory;  // --dir: of nacre local
  std::string mds;        // --mds: an address
  std::string path;       // a path inside a mount; empty: the working directory, then the default address
};

void AddTargetOptions(CLI::App* command, ClusterTarget* target);
// Without the path: for commands whose own argument stands there.
void AddAddressOptions(CLI::App* command, ClusterTarget* target);

// The address of the MDS. NOT_FOUND: the path lies on no Nacre mount.
StatusOr<std::string> FindMds(const ClusterTarget& target);

StatusOr<proto::ClusterStatus> FetchStatus(const ClusterTarget& target);

// The reply of an administrator's request; an error if its status is one. Waits for at most `patience`.
StatusOr<proto::AdminReply> Administer(const ClusterTarget& target, proto::AdminRequest request,
                                       Duration patience);

}  // namespace nacre::cli
