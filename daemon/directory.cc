#include "daemon/directory.h"

#include <absl/strings/str_format.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

namespace nacre {

Status MakeDirectories(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error)
    return ErrnoError(error.value(),
                      absl::StrFormat("cannot make the directory %s: %s", path, error.message()));
  if (!std::filesystem::is_directory(path, error)) {
    return ErrnoError(ENOTDIR, absl::StrFormat("%s is not a directory", path));
  }
  return OkStatus();
}

}  // namespace nacre
