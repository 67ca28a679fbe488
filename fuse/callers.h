// The caller of a request: ids from the request itself, supplementary groups from /proc, kept per process for
// a moment because reading them costs more than many a request. Thread-safe.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <mutex>
#include <vector>

#include "client/filesystem.h"
#include "common/clock.h"

struct fuse_req;

namespace nacre::fuse {

class Callers {
 public:
  explicit Callers(Clock& clock) : clock_(clock) {}

  // Root's groups are left empty: they grant nothing that it has not. Groups may be up to a second old: the
  // kernel's own check (default_permissions) uses the present ones, and after it the MDS these. A caller in a
  // pid namespace that cannot be seen from the daemon's has no groups but his own: what only a supplementary
  // one would allow him is refused with EACCES (run the daemon in the first pid namespace).
  client::Caller Of(fuse_req* request);

 private:
  struct Known {
    uint32_t uid = 0, gid = 0;
    std::vector<uint32_t> groups;
    Duration until{0};
  };

  std::vector<uint32_t> GroupsOf(fuse_req* request, const client::Caller& caller);

  Clock& clock_;
  std::mutex mutex_;
  absl::flat_hash_map<uint32_t, Known> by_pid_;
};

}  // namespace nacre::fuse
