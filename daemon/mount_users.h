// The processes that use a mount: for a warning before it is taken off under them. Looks at names in /proc
// alone, never at the mount, which may not answer. Stateless.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace nacre {

struct MountUser {
  pid_t pid = 0;
  std::string program;
};

// Those that have a file of the mount open, run from it or have their working directory there, by pid; of
// processes of others only root sees that.
std::vector<MountUser> FindMountUsers(const std::string& mountpoint);

// "4711 (bash), 4712 (vim) and 3 more".
std::string Describe(const std::vector<MountUser>& users);

}  // namespace nacre
