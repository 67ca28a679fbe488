// Which versions of what goes over the wire this program speaks, and which one it has in common with another
// program (docs/upgrading.md). Pure functions.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <string>

#include "common/status.h"

namespace nacre {

struct VersionRange {
  uint32_t oldest = 0;
  uint32_t newest = 0;
  bool Has(uint32_t version) const { return oldest <= version && version <= newest; }
  // "version 3", or "versions 2 to 3".
  std::string ToString() const {
    if (oldest == newest) return absl::StrFormat("version %d", newest);
    return absl::StrFormat("versions %d to %d", oldest, newest);
  }
};

// Between a client and the servers: metadata.proto, and of object.proto what clients ask for.
inline constexpr VersionRange kClientVersions{3, 5};
inline constexpr uint32_t kOrderedBatches = 4;  // from here on a batch may say which one it follows
inline constexpr uint32_t kSharedFiles = 5;     // from here on there are SHARED leases of files
// Among servers: cluster.proto, copies.proto, and of object.proto what an MDS or a member of a chain asks
// for.
inline constexpr VersionRange kServerVersions{1, 1};
inline constexpr uint32_t kUnnumberedServerVersion = 1;  // of servers of before there was a number

// The range of a message's fields `version` and `oldest_version`. A peer that says no oldest one speaks no
// other; one that says nothing is older than the numbers, and counts as `unnumbered`.
inline VersionRange RangeOf(uint32_t newest, uint32_t oldest, uint32_t unnumbered) {
  if (newest == 0) newest = unnumbered;
  return {oldest == 0 ? newest : oldest, newest};
}

// The newest that both speak. EPROTO: there is none; `they` and `we` name the two in the message.
inline StatusOr<uint32_t> CommonVersion(VersionRange theirs, VersionRange ours, std::string_view they,
                                        std::string_view we) {
  const uint32_t common = std::min(theirs.newest, ours.newest);
  if (theirs.Has(common) && ours.Has(common)) return common;
  return ErrnoError(
      EPROTO, absl::StrFormat("%s speaks %s of the protocol, %s %s: they need releases that have one in "
                              "common (docs/upgrading.md)",
                              they, theirs.ToString(), we, ours.ToString()));
}

}  // namespace nacre
