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

// Each Connect asks one server, the next in turn, for so long as the timeout allows but no longer than 3 s:
// who wants a stream calls again, servers() times before it takes it that none is there, as it does when the
// one that it got says that it is not the primary. (Not one Connect for all of them: whether a server is the
// primary is only known from the answer to the first request.) The first is asked first; the one whose
// stream was lost is asked again when all others have been.
std::shared_ptr<MetadataConnector> NewSeveralConnector(
    std::vector<std::shared_ptr<MetadataConnector>> connectors);

// A call goes to the server that has answered last, and from one that does not answer, or whose answer's
// status says UNAVAILABLE, to the next, until all have been asked. A server is given up for the next when
// half of what is left of the call's timeout is over; the last one has all that is left. So a call may be
// carried out by one that was given up; those who call repeat theirs anyway. What fails everywhere fails with
// the error of the server that said the most: one that has answered UNAVAILABLE, else the last.
std::shared_ptr<ClusterChannel> NewSeveralClusterChannel(
    std::vector<std::shared_ptr<ClusterChannel>> channels, Clock& clock, Duration timeout);

}  // namespace nacre
