// How one extent went: what the caller gets, and the error with all of its text. Small, for an operation has
// thousands of them; the caller's structure is filled in at the end.
#pragma once

#include <nacre/nacre.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace nacre::api {

struct ExtentOutcome {
  uint64_t bytes = 0;  // those of a write that failed as well
  nacre_verification verification = NACRE_VERIFIED_NONE;
  std::string_view path;  // that the bytes took, of KeepPath
  Status status = OkStatus();

  nacre_result Result() const;
};
using Outcome = std::vector<ExtentOutcome>;  // of several extents

// The same text, which stays for as long as the process: there are only some combinations of a few words.
// Thread-safe.
std::string_view KeepPath(std::string_view path);

// Nothing was transferred.
ExtentOutcome Failed(const Status& status);

}  // namespace nacre::api
