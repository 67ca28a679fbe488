// Reads /proc/PROCESS/mountinfo. Asks no filesystem for anything: a dead or hanging mount would answer with
// an error or not at all.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace nacre::fuse {

struct MountinfoLine {
  std::string device;  // "0:52"
  std::string root;    // what of the filesystem is mounted there
  std::string mountpoint;
  std::string type;  // "fuse.nacre"
  std::string source;
};

// Nothing: it is no such line.
std::optional<MountinfoLine> ParseMountinfo(const std::string& line);

// Whether the path is the directory or below it, by the text alone.
bool LiesBelow(std::string_view path, std::string_view directory);

}  // namespace nacre::fuse
