// From a file's FID to its paths: through the links that each inode names, up to the root. Takes no locks, so
// that a path may be that of before a rename which goes on. Thread-safe.
#pragma once

#include <string>
#include <vector>

#include "server/metadata/tables.h"

namespace nacre::mds {

// At most kMaxPaths, the primary link's first. NOT_FOUND: there is no such file, or it is open, but has no
// name any more.
inline constexpr size_t kMaxPaths = 100;
StatusOr<std::vector<std::string>> PathsOf(Tables& tables, const Fid& fid);

// For messages: " (/path)", or nothing where there is none.
std::string PathRemark(Tables& tables, const Fid& fid);

}  // namespace nacre::mds
