// How one extent went: what the caller gets, and the error with all of its text.
#pragma once

#include <nacre/nacre.h>

#include <vector>

#include "common/status.h"

namespace nacre::api {

struct ExtentOutcome {
  nacre_result result = NACRE_RESULT_INIT;
  Status status = OkStatus();
};
using Outcome = std::vector<ExtentOutcome>;  // of several extents

// Fills in what an error says; nothing was transferred.
void SetError(const Status& status, nacre_result* result);

ExtentOutcome Failed(const Status& status);

}  // namespace nacre::api
