#include "daemon/cli/xattr.h"

#include <absl/strings/str_format.h>
#include <sys/xattr.h>

#include <cerrno>
#include <cstring>

namespace nacre::cli {
namespace {

Status Explain(int error, const std::string& path) {
  if (error == ENODATA || error == EOPNOTSUPP) {
    return ErrnoError(EXDEV, absl::StrFormat("%s is not on a Nacre mount", path));
  }
  return ErrnoError(error, absl::StrFormat("%s: %s", path, std::strerror(error)));
}

}  // namespace

StatusOr<std::string> ReadXattr(const std::string& path, const std::string& name) {
  std::string value(64 << 10, '\0');
  ssize_t size = getxattr(path.c_str(), name.c_str(), value.data(), value.size());
  if (size < 0) return Explain(errno, path);
  value.resize(static_cast<size_t>(size));
  return value;
}

Status WriteXattr(const std::string& path, const std::string& name, const std::string& value) {
  if (setxattr(path.c_str(), name.c_str(), value.data(), value.size(), 0) == 0) return OkStatus();
  return Explain(errno, path);
}

}  // namespace nacre::cli
