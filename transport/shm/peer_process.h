// Finds the process at the other end of a unix socket, and judges whether memory may be shown to it. It may
// see of this process's memory what it could have read by itself: the rules are those by which the kernel
// lets a process trace another (docs/decisions/0023-shared-memory.md). Functions on a connected socket;
// thread-safe.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "common/status.h"

namespace nacre::shm {

// EACCES, in words, unless the process at the other end runs as this one's user or as root, and in the same
// user namespace and pid namespace: root of a container is root of nothing else. Also if that cannot be found
// out.
Status CheckUser(int socket);

// The same; and besides, the process has the capabilities that it would need to trace this one, of which
// root of a container that shares the machine's namespaces has been deprived.
Status CheckMayTrace(int socket);

// The traits of a process that /proc gives.
struct ProcessTraits {
  bool same_pid_namespace = false;  // as that of who looks
  uint64_t capabilities = 0;        // permitted
  std::string users;                // its user namespace's uid_map, as seen from that of who looks

  // Of "/proc/PID/status". EACCES: it does not say what is needed.
  static StatusOr<ProcessTraits> Parse(const std::string& status, std::string users);
};

// The parts of the rules.
Status CheckUserId(uid_t other, uid_t own, uid_t overflow);
Status CheckNamespaces(const ProcessTraits& other, const ProcessTraits& own);
Status CheckCapabilities(const ProcessTraits& other, const ProcessTraits& own, bool same_user);

}  // namespace nacre::shm
