#include "compat/nixl/file_name.h"

#include <fcntl.h>

#include <sstream>

namespace nacre::nixl {

std::optional<FileName> ParseFileName(const std::string& meta) {
  const size_t colon = meta.find(':');
  if (colon == std::string::npos || colon + 1 == meta.size()) return std::nullopt;
  FileName name;
  name.path = meta.substr(colon + 1);
  std::istringstream modes(meta.substr(0, colon));
  std::string mode;
  std::getline(modes, mode, ',');
  if (mode != "ro" && mode != "rw") return std::nullopt;
  name.flags = mode == "ro" ? O_RDONLY : O_RDWR;
  while (std::getline(modes, mode, ',')) {
    if (mode == "create")
      name.flags |= O_CREAT;
    else if (mode == "sync")
      name.sync = true;
    else if (mode != "direct" && mode != "noatime")
      return std::nullopt;
  }
  return name;
}

}  // namespace nacre::nixl
