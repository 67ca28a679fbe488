#include "daemon/directory.h"

#include <absl/strings/str_format.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

namespace nacre {

Status MakeDirectories(const std::string& path, std::vector<std::string>* made) {
  namespace fs = std::filesystem;
  auto failed = [&path](int error) {
    return ErrnoError(error, absl::StrFormat("cannot make the directory %s: %s", path, std::strerror(error)));
  };
  std::error_code error;
  fs::path prefix;
  for (const fs::path& part : fs::path(path)) {
    if (part.empty()) continue;  // behind a slash at the end
    prefix /= part;
    if (fs::is_directory(prefix, error)) continue;
    if (::mkdir(prefix.c_str(), 0755) != 0) {
      if (errno == EEXIST && fs::is_directory(prefix, error)) continue;  // made by another process meanwhile
      if (errno == EEXIST)
        return ErrnoError(ENOTDIR, absl::StrFormat("%s is not a directory", prefix.string()));
      return failed(errno);
    }
    if (made != nullptr) made->push_back(prefix);
    if (::chmod(prefix.c_str(), 0755) != 0) return failed(errno);
  }
  return OkStatus();
}

}  // namespace nacre
