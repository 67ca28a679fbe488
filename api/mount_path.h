// Finds the filesystem that a path of this process lies on, by asking the mount's daemon for extended
// attributes: no configuration is needed beside the mount. Stateless. Errors name the path.
#pragma once

#include <string>

#include "common/ids.h"
#include "common/status.h"

namespace nacre::api {

struct MountPlace {
  Fid fid;                // of what the path names
  std::string mds;        // address
  std::string transport;  // how the mount reaches the object servers (transport/data_plane.h)
};

// ENOTSUP: the path is not on a Nacre filesystem. Else as stat(2).
StatusOr<MountPlace> FindOnMount(const std::string& path);

// The value of the attribute. INVALID_ARGUMENT if it is none.
StatusOr<MountPlace> ParsePlace(const std::string& value);

// The directory and the last name of a path. EINVAL: it has no name of its own, such as "/" or "a/..".
struct SplitPath {
  std::string directory, name;
};
StatusOr<SplitPath> SplitLastName(const std::string& path);

}  // namespace nacre::api
