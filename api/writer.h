// Writing extents of buffers to one file. Stateless; tasks of the connection's executor.
//
// The extents are cut into steps, of which several are under way at once: so one step is copied out of GPU
// memory while the one before it is on its way to the servers. A file that is open with O_APPEND takes one
// step after the other, in the order of the extents.
#pragma once

#include <vector>

#include "api/extents.h"
#include "api/outcome.h"
#include "common/cancellation.h"

namespace nacre::api {

// How each of them went. One that failed or was cancelled says in `bytes` how many, from its beginning, are
// written all the same; what lies behind them may be. All extents are of one file.
Task<std::vector<ExtentOutcome>> WriteTogether(std::vector<CheckedExtent> extents,
                                               CancellationPtr cancellation);

}  // namespace nacre::api
