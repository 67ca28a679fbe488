// The MDSes that have copies of one MDT (docs/replication.md) as people and programs are shown them.
// Stateless.
#pragma once

#include <string>
#include <vector>

#include "daemon/cli/status_json.h"
#include "proto/cluster.pb.h"

namespace nacre::cli {

// For nacre status: the set, and below it its members.
std::vector<std::string> CopiesLines(const proto::MdtCopies& copies);

// One for each member that is not in sync.
std::vector<std::string> CopiesProblems(const proto::MdtCopies& copies);

// {"epoch": 3, "primary": "mds1", "sequence": 815, "members": [{"name": "mds1", "state": "primary", …}]}
Json CopiesToJson(const proto::MdtCopies& copies);

}  // namespace nacre::cli
