// Extended attributes by path, with errors that say what is wrong from the user's side. Stateless.
#pragma once

#include <string>

#include "common/status.h"

namespace nacre::cli {

// NOT_FOUND: the path does not exist; FAILED_PRECONDITION: it is on no Nacre mount.
StatusOr<std::string> ReadXattr(const std::string& path, const std::string& name);
Status WriteXattr(const std::string& path, const std::string& name, const std::string& value);

}  // namespace nacre::cli
