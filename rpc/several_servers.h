// Several MDSes of which one, and not always the same, serves: what talks to one of them, made into what
// talks to whichever serves. Thread-safe.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "rpc/cluster_channel.h"
#include "rpc/metadata_channel.h"

namespace nacre {

// The parts of "host1:7710,host2:7710"; one address is a list of one. INVALID_ARGUMENT: one of them is empty.
StatusOr<std::vector<std::string>> SplitAddresses(const std::string& addresses);

// Whether one server is in both lists: they name the same filesystem then.
bool ShareServer(const std::string& addresses, const std::string& others);

// Each Connect asks one server, for so long as the timeout allows but no longer than 3 s. It is the first one
// until that has failed: could not be connected to, answered a session's Connect request with UNAVAILABLE (it
// is not the primary), its stream has ended, or was closed while it owed an answer. Then the others follow,
// one at each Connect, and last those that did not answer when they were asked before. So who wants a stream
// calls again, servers() times before it takes it that none is there. (Not one Connect for all of them:
// whether a server is the primary is only known from the answer to the first request.) Sessions that share
// the connector share what they find out.
std::shared_ptr<MetadataConnector> NewSeveralConnector(
    std::vector<std::shared_ptr<MetadataConnector>> connectors);

// A call goes to the server that has answered last. From one that does not answer, whose answer's status says
// UNAVAILABLE, or that answers in an earlier epoch than another has, it goes to the next, until all have been
// asked once; while there are others left, a server has half of what is left of the timeout. So a call may be
// carried out by one that was given up; those who call repeat theirs anyway. A call that fails everywhere
// fails with what all servers have said, and the first one's errno.
std::shared_ptr<ClusterChannel> NewSeveralClusterChannel(
    std::vector<std::shared_ptr<ClusterChannel>> channels, Clock& clock, Duration timeout);

}  // namespace nacre
