// Checks stopped targets: an MDT, OSTs, and a cluster's MDT against its OSTs. It is `nacre doctor` without
// its output.
//
// Main thread only; blocks. Changes nothing unless told to repair; refuses targets that a server has in use.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/status.h"

namespace nacre {

struct DoctorOptions {
  bool repair = false;
  bool data = false;  // read all data and verify its checksums
  std::function<void(const std::string& state)> on_progress;
};

struct TargetReport {
  std::string target;  // "MDT", "OST 3", "MDT against 4 OSTs"
  std::string directory;
  std::string summary;                // "12 objects, 3.00 MiB used"
  Status failure;                     // the check could not be made: nothing below is set
  std::vector<std::string> problems;  // the first ones
  uint64_t problem_count = 0;
  uint64_t left = 0;  // problems that are still there: without repair all of them
};

// `directory` is a target, or holds targets (of nacre local, /var/lib/nacre): mdt/ and directories of OSTs.
// NOT_FOUND if there is no target.
StatusOr<std::vector<TargetReport>> Examine(const std::string& directory, const DoctorOptions& options);

}  // namespace nacre
