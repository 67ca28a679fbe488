// Directories that the programs keep things in.
#pragma once

#include <string>
#include <vector>

#include "common/status.h"

namespace nacre {

// Makes the directory and those above it, 0755 whatever the umask. OK if it is there. Adds what it made to
// `made`, the uppermost first.
Status MakeDirectories(const std::string& path, std::vector<std::string>* made = nullptr);

}  // namespace nacre
