// Compares stopped copies of one MDT: nacre mdt compare, without its output. Records that each copy keeps
// beside the MDT do not count. Main thread only; blocks; changes nothing. Errors name the directory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/status.h"

namespace nacre {

struct MdtDifferences {
  uint64_t records = 0;  // of the first copy
  struct Other {
    std::string directory;
    uint64_t differences = 0;         // records that only one of the two has, or that are others
    std::vector<std::string> places;  // the first ones
  };
  std::vector<Other> others;

  bool equal() const;
};

// The first against each other. EBUSY: a server has one in use. NOT_FOUND: no MDT there.
StatusOr<MdtDifferences> CompareMdts(const std::vector<std::string>& directories);

}  // namespace nacre
