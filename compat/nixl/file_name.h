// How NIXL's applications name a file: by a descriptor of theirs, or by "MODES:PATH" in the segment's
// meta-information, of which MODES are "ro" or "rw" and, with commas, "create", "sync", "direct", "noatime".
#pragma once

#include <optional>
#include <string>

namespace nacre::nixl {

struct FileName {
  std::string path;
  int flags = 0;      // of open(2): the access, and O_CREAT
  bool sync = false;  // what was written is durable before the transfer is done
};

// Nothing: it is no such name, so the segment's number is a descriptor. "direct" and "noatime" say nothing
// here: no byte passes a cache, and reading sets no time.
std::optional<FileName> ParseFileName(const std::string& meta);

}  // namespace nacre::nixl
