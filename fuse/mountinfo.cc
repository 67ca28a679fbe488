#include "fuse/mountinfo.h"

#include <absl/strings/str_split.h>

#include <algorithm>
#include <vector>

namespace nacre::fuse {
namespace {

// Undoes the kernel's octal escapes of blank, tab, newline and backslash.
std::string Unescape(std::string_view field) {
  std::string out;
  for (size_t i = 0; i < field.size(); ++i) {
    if (field[i] == '\\' && i + 3 < field.size()) {
      out.push_back(
          static_cast<char>((field[i + 1] - '0') * 64 + (field[i + 2] - '0') * 8 + (field[i + 3] - '0')));
      i += 3;
    } else {
      out.push_back(field[i]);
    }
  }
  return out;
}

}  // namespace

std::optional<MountinfoLine> ParseMountinfo(const std::string& line) {
  const std::vector<std::string> fields = absl::StrSplit(line, ' ');
  const auto dash = std::find(fields.begin(), fields.end(), "-");
  if (fields.size() < 6 || fields.end() - dash < 3) return std::nullopt;
  return MountinfoLine{fields[2], Unescape(fields[3]), Unescape(fields[4]), Unescape(dash[1]),
                       Unescape(dash[2])};
}

bool LiesBelow(std::string_view path, std::string_view directory) {
  if (directory == "/") return true;
  return path.starts_with(directory) && (path.size() == directory.size() || path[directory.size()] == '/');
}

}  // namespace nacre::fuse
