// Directories that the programs keep things in.
#pragma once

#include <string>

#include "common/status.h"

namespace nacre {

// Makes the directory and those above it, 0755. OK if it is there.
Status MakeDirectories(const std::string& path);

}  // namespace nacre
