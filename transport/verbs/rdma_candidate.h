// RDMA as a path beside TCP (path_candidate.h): the offer is the address of the TCP listener over which queue
// pairs are set up. Empty while this machine has no usable RDMA port, so a device that appears later is used
// from then on. Thread-safe.
#pragma once

#include <memory>
#include <string>

#include "common/clock.h"
#include "common/task.h"
#include "transport/select/path_candidate.h"
#include "transport/verbs/verbs_transport.h"

namespace nacre {

struct RdmaCandidateOptions {
  // The host that the server listens at, which must not be reached from farther away than its TCP address,
  // and the one that clients are told.
  std::string listen_host = "127.0.0.1";
  std::string offered_host = "127.0.0.1";
  bool required = false;  // true: Listen fails where there is no usable port now
  VerbsOptions verbs;
};

// "rdma". The clock must outlive the candidate and what it has made.
std::shared_ptr<PathCandidate> MakeRdmaCandidate(Executor executor, Clock& clock,
                                                 RdmaCandidateOptions options);

}  // namespace nacre
