// The name of this machine. Thread-safe.
#pragma once

#include <string>

#include "common/status.h"

namespace nacre {

// Of this boot of this machine: two processes that see the same one run on the same kernel.
StatusOr<std::string> BootId();

}  // namespace nacre
