#include "api/mount_path.h"

#include <absl/strings/str_format.h>
#include <absl/strings/str_split.h>
#include <sys/xattr.h>

#include <array>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>

namespace nacre::api {
namespace {

constexpr char kAttribute[] = "nacre.place";

bool ParseFid(const std::string& text, Fid* fid) {
  int end = 0;
  const int fields = std::sscanf(text.c_str(), "[0x%" SCNx64 ":0x%" SCNx32 ":0x%" SCNx32 "]%n",
                                 &fid->sequence, &fid->object, &fid->version, &end);
  return fields == 3 && static_cast<size_t>(end) == text.size();
}

}  // namespace

StatusOr<MountPlace> ParsePlace(const std::string& value) {
  MountPlace place;
  bool has_fid = false;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(value, '\n'))) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits('=', 1));
    if (parts.size() != 2) continue;
    if (parts[0] == "fid") has_fid = ParseFid(parts[1], &place.fid);
    if (parts[0] == "mds") place.mds = parts[1];
    if (parts[0] == "transport") place.transport = parts[1];
  }
  if (has_fid && !place.mds.empty() && !place.transport.empty()) return place;
  return ErrnoError(EINVAL, absl::StrFormat("%s is '%s': not what a Nacre mount says", kAttribute, value));
}

StatusOr<MountPlace> FindOnMount(const std::string& path) {
  std::array<char, 4096> value;
  const ssize_t size = ::getxattr(path.c_str(), kAttribute, value.data(), value.size());
  if (size >= 0) return ParsePlace(std::string(value.data(), static_cast<size_t>(size)));
  const int error = errno;
  if (error == ENODATA || error == EOPNOTSUPP) {
    return ErrnoError(ENOTSUP, absl::StrFormat("%s is not on a Nacre mount: give a path on one, or open the "
                                               "filesystem by the address of its MDS",
                                               path));
  }
  return ErrnoError(error, absl::StrFormat("%s: %s", path, std::strerror(error)));
}

StatusOr<SplitPath> SplitLastName(const std::string& path) {
  std::string trimmed = path;
  while (trimmed.size() > 1 && trimmed.back() == '/') trimmed.pop_back();
  const size_t slash = trimmed.rfind('/');
  SplitPath split;
  split.name = slash == std::string::npos ? trimmed : trimmed.substr(slash + 1);
  if (slash != std::string::npos) split.directory = trimmed.substr(0, slash + 1);
  if (!split.name.empty() && split.name != "." && split.name != "..") return split;
  return ErrnoError(EINVAL, absl::StrFormat("'%s' names no file", path));
}

}  // namespace nacre::api
