// The status of a system call that has just failed: its errno, and "WHAT: the reason" for people.
#pragma once

#include <absl/strings/str_cat.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "common/status.h"

namespace nacre {

inline Status SystemError(const std::string& what) {
  const int error = errno;
  return ErrnoError(error, absl::StrCat(what, ": ", std::strerror(error)));
}

}  // namespace nacre
