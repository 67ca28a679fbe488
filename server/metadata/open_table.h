// Which session has which inode open, and how often. In memory: after a restart the clients tell it again
// (Reclaim). Thread-safe.
//
// A session's opens come over its streams, which are numbered. When a stream is lost, replies are lost with
// it: the client says over the next one what it has open (Replace), then repeats its requests. An open of an
// earlier stream that ends after that is not noted: its reply reaches nobody.
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
  struct Handles {
    Fid fid;
    uint32_t count = 0;
    bool write = false;
  };

  void Open(SessionId session, const Fid& fid, bool write, uint64_t stream);
  // The session keeps this file, which it has unlinked, until it closes all of it (count 0). Told again with
  // the repeat of the removal, so it survives Replace.
  void Hold(SessionId session, const Fid& fid);
  // Replaces what was noted of this file by what came over this stream; count 0: nothing any more.
  void Set(SessionId session, const Handles& handles, uint64_t stream);
  // Replaces the handles of all files of the session by these, which came over this stream, and by those that
  // were Set over it before: a session tells in several messages what it has open, if it is much.
  void Replace(SessionId session, const std::vector<Handles>& all, uint64_t stream);
  // 0: all of the session's handles.
  void Close(SessionId session, const Fid& fid, uint32_t count, bool write);

  bool IsOpen(const Fid& fid) const;
  // Whether nobody but this session has it open for writing.
  bool IsSoleWriter(SessionId session, const Fid& fid) const;
  uint64_t CountOf(SessionId session) const;
  std::vector<Fid> FilesOf(SessionId session) const;
  void DropSession(SessionId session);

 private:
  struct Count {
    uint32_t handles = 0;
    uint32_t writers = 0;
    bool held = false;
  };
  struct Files {
    absl::flat_hash_set<Fid> fids;
    uint64_t replaced_by = 0;      // the last stream that Replace came by
    absl::flat_hash_set<Fid> set;  // over `set_by`, since which no Replace came
    uint64_t set_by = 0;
  };
  Count& CountFor(SessionId session, const Fid& fid);
  void SetLocked(SessionId session, const Handles& handles);
  void Forget(SessionId session, const Fid& fid);
  std::vector<Fid> FilesLocked(SessionId session) const;  // in order

  mutable std::mutex mutex_;
  absl::flat_hash_map<Fid, std::map<SessionId, Count>> files_;
  absl::flat_hash_map<SessionId, Files> sessions_;
};

}  // namespace nacre::mds
