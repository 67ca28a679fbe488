// Reading extents of one file into buffers. Stateless; tasks of the connection's executor.
#pragma once

#include <span>

#include "api/extents.h"
#include "api/outcome.h"
#include "common/cancellation.h"
#include "common/task.h"

namespace nacre::api {

// How each of them went: all extents, which are of one file and outlive the task, are read in as few requests
// as they need. If one of them cannot be read, each of them has the same error, and the caller may read each
// by itself.
Task<Outcome> ReadTogether(std::span<const CheckedExtent> extents, CancellationPtr cancellation);
// Each by itself.
Task<Outcome> ReadEach(std::span<const CheckedExtent> extents, CancellationPtr cancellation);

}  // namespace nacre::api
