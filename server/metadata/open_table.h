// Which session has which inode open, and how often. In memory: after a restart the clients tell it again
// (Reclaim). Thread-safe.
#pragma once

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include <map>
#include <mutex>
#include <vector>

#include "common/ids.h"

namespace nacre::mds {

class OpenTable {
 public:
  void Open(SessionId session, const Fid& fid, bool write);
  // One handle, unless the session has some already.
  void Hold(SessionId session, const Fid& fid);
  // Replaces what was noted; 0 handles: none any more.
  void Set(SessionId session, const Fid& fid, uint32_t count, bool write);
  // 0: all of the session's handles.
  void Close(SessionId session, const Fid& fid, uint32_t count, bool write);

  bool IsOpen(const Fid& fid) const;
  bool IsOpenFor(SessionId session, const Fid& fid) const;
  uint64_t CountOf(SessionId session) const;
  std::vector<Fid> FilesOf(SessionId session) const;
  void DropSession(SessionId session);

 private:
  struct Count {
    uint32_t handles = 0;
    uint32_t writers = 0;
  };
  void Forget(SessionId session, const Fid& fid);

  mutable std::mutex mutex_;
  absl::flat_hash_map<Fid, std::map<SessionId, Count>> files_;
  absl::flat_hash_map<SessionId, absl::flat_hash_set<Fid>> sessions_;
};

}  // namespace nacre::mds
