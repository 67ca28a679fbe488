// The leases that are held and those that are being revoked. The table knows resources and modes, and no
// policy (filesystem_lease.h decides). In memory: a client that comes back after a restart says what it held.
// Thread-safe.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "common/ids.h"
#include "common/task.h"
#include "proto/metadata.pb.h"

namespace nacre::mds {

struct LeaseGrant {
  uint64_t id = 0;
  Fid resource;
  SessionId session = 0;
  proto::LeaseMode mode = proto::LEASE_NONE;
  bool revoking = false;

  proto::Lease ToProto() const;
};

class LeaseTable {
 public:
  // Ids begin here: other ones than those of an earlier process, which clients may still name.
  explicit LeaseTable(uint64_t first_id) : next_id_(first_id) {}

  // The grant of this session on the resource is made, or changed to this mode; one that is being given back
  // does not count. The caller has made sure that no other session's conflicts.
  LeaseGrant Grant(SessionId session, const Fid& resource, proto::LeaseMode mode);
  // Enters a lease that a client says it held before a restart. False: another session's grant conflicts.
  bool Restore(SessionId session, const proto::Lease& lease);

  // Grants of other sessions that conflict with `mode`: two conflict unless both are READ.
  std::vector<LeaseGrant> Conflicts(const Fid& resource, SessionId session, proto::LeaseMode mode) const;
  std::vector<LeaseGrant> HoldersOf(const Fid& resource) const;

  // From now on it counts as being given back. False: there is no such grant any more.
  bool BeginRevoke(uint64_t id);
  // Set when the grant is released or its session has ended; at once if there is none.
  OneShot<Unit> Released(uint64_t id);

  // keep NONE: the grant ends. Nothing happens for a foreign or unknown id.
  void Release(SessionId session, uint64_t id, proto::LeaseMode keep);
  // Grants of READ that the session does not name as its own end: the replies with them were lost.
  void EndUnnamed(SessionId session, const std::set<uint64_t>& named);
  void DropSession(SessionId session);
  std::map<SessionId, uint64_t> CountBySession() const;

 private:
  struct Slot {
    LeaseGrant grant;
    std::vector<OneShot<Unit>> waiters;
  };
  std::vector<LeaseGrant> HoldersLocked(const Fid& resource) const;

  mutable std::mutex mutex_;
  uint64_t next_id_;
  std::map<uint64_t, Slot> grants_;
  absl::flat_hash_map<Fid, std::vector<uint64_t>> by_resource_;

  void Erase(uint64_t id, std::vector<OneShot<Unit>>* waiters);
  template <typename Which>
  void EraseAll(Which which);  // of these grants
};

}  // namespace nacre::mds
