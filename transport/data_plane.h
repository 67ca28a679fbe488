// The data plane of a process: puts together the paths that its configuration allows. Thread-safe.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/task.h"
#include "transport/transport.h"

namespace nacre {

// The values that the key `transport` may have: "auto" is the best path that works with each server, "tcp" is
// TCP alone, the others are the only path besides the greeting over TCP.
const std::vector<std::string>& TransportChoices();

// ENOTSUP: this machine has no such path; "auto" and "tcp" always work. The clock must outlive the transport
// and what it has made. Of a server: `listen` is where it will listen, `advertise` what clients are told if
// that is another address; what serves a path on a port of its own keeps to these hosts.
StatusOr<std::unique_ptr<Transport>> MakeDataPlane(Executor executor, Clock& clock, const std::string& choice,
                                                   const std::string& listen = {},
                                                   const std::string& advertise = {});

}  // namespace nacre
