// The leases that are held, those that are being revoked, and what none are granted on at the moment. The
// table knows resources and modes, and no policy (filesystem_lease.h and change_guard.h decide). In memory: a
// client that comes back after a restart says what it held. Thread-safe.
#pragma once

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "common/clock.h"
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
  Duration since{0};       // when it was granted, by the server's clock
  Duration asked_back{0};  // when it was first asked back

  proto::Lease ToProto() const;
};

class LeaseTable {
 public:
  // Ids begin here: other ones than those of an earlier process, which clients may still name.
  // `clock`, which must outlive this, says since when leases are held; null: nobody wants to know.
  explicit LeaseTable(uint64_t first_id, Clock* clock = nullptr) : next_id_(first_id), clock_(clock) {}

  // The grant of this session on the resource is made, or changed to this mode; one that is being given back
  // does not count. The caller has made sure that no other session's conflicts.
  LeaseGrant Grant(SessionId session, const Fid& resource, proto::LeaseMode mode);
  // The same beside one that the session may have already, which is another purpose's.
  LeaseGrant GrantAnother(SessionId session, const Fid& resource, proto::LeaseMode mode);
  // READ for this session as well. Nothing: a change of the resource is under way, or was not long ago
  // (GrantNoneUntil); or the session has as many as one may have.
  std::optional<LeaseGrant> TryGrantRead(SessionId session, const Fid& resource, Duration now);
  // WRITE, in place of READ that the session may hold. Nothing: as above; or another session holds any, or
  // this one is about to give its own back.
  std::optional<LeaseGrant> TryGrantWrite(SessionId session, const Fid& resource, Duration now);
  // From here to as many calls of EndChange neither of them grants anything on it.
  void BeginChange(const Fid& resource);
  void EndChange(const Fid& resource);
  // Until then nothing of this mode is granted on it: READ, nothing at all; WRITE, that alone. `whatever`:
  // also if EndPeace is called.
  void GrantNoneUntil(const Fid& resource, proto::LeaseMode mode, Duration time, bool whatever = false);
  // What the last GrantNoneUntil has said of it does not hold any more.
  void EndPeace(const Fid& resource);

  // Enters a lease that a client says it held before a restart, or takes over its mode: the reply with a
  // higher one was lost. False: another session's grant conflicts.
  bool Restore(SessionId session, const proto::Lease& lease);

  // Grants of other sessions that conflict with `mode`: two conflict unless both are READ.
  std::vector<LeaseGrant> Conflicts(const Fid& resource, SessionId session, proto::LeaseMode mode) const;
  bool HasConflict(const Fid& resource, SessionId session, proto::LeaseMode mode) const;
  std::vector<LeaseGrant> HoldersOf(const Fid& resource) const;
  std::optional<LeaseGrant> Find(uint64_t id) const;
  std::vector<LeaseGrant> ReadersBut(SessionId session) const;    // all READ leases of other sessions
  bool HoldsWrite(SessionId session, const Fid& resource) const;  // being given back or not

  // From now on it counts as being given back. False: there is no such grant any more.
  bool BeginRevoke(uint64_t id);
  // Set when the grant is released or its session has ended; at once if there is none.
  OneShot<Unit> Released(uint64_t id);

  // keep NONE: the grant ends. Nothing happens for a foreign or unknown id.
  void Release(SessionId session, uint64_t id, proto::LeaseMode keep);
  // Grants of inodes that the session does not name as its own end: the replies with them were lost.
  void EndUnnamed(SessionId session, const std::set<uint64_t>& named);
  void DropSession(SessionId session);
  struct Counts {
    uint64_t held = 0;
    uint64_t writes = 0;      // of these
    uint64_t asked_back = 0;  // of these
  };
  std::map<SessionId, Counts> CountBySession() const;
  // Why nothing is granted on the resource now, for people: until when no lease, no WRITE, and how many
  // changes are under way.
  struct Refused {
    Duration until{0}, write_until{0};
    uint32_t changes = 0;
  };
  Refused WhyNot(const Fid& resource) const;
  std::vector<Fid> WrittenBy(SessionId session) const;  // the inodes of which it holds WRITE

 private:
  struct Slot {
    LeaseGrant grant;
    std::vector<OneShot<Unit>> waiters;
  };
  // Says why TryGrantRead and TryGrantWrite refuse a resource, and until when.
  struct Blocked {
    uint32_t changes = 0;  // under way
    Duration until{0};
    Duration write_until{0};  // WRITE; no earlier
    bool whatever = false;    // EndPeace does not end that
    bool any(Duration now) const { return changes > 0 || write_until > now; }
  };
  std::vector<LeaseGrant> HoldersLocked(const Fid& resource) const;
  bool HasRoom(SessionId session) const;
  LeaseGrant GrantLocked(SessionId session, const Fid& resource, proto::LeaseMode mode);
  LeaseGrant AddLocked(SessionId session, const Fid& resource, proto::LeaseMode mode);
  bool MayGrant(const Fid& resource, proto::LeaseMode mode, Duration now);

  Duration Now() const { return clock_ != nullptr ? clock_->Now() : Duration(0); }

  mutable std::mutex mutex_;
  uint64_t next_id_;
  Clock* const clock_;
  std::map<uint64_t, Slot> grants_;
  absl::flat_hash_map<Fid, std::vector<uint64_t>> by_resource_;
  absl::flat_hash_map<SessionId, absl::flat_hash_set<uint64_t>> by_session_;
  absl::flat_hash_map<Fid, Blocked> blocked_;
  std::deque<std::pair<Duration, Fid>> quiet_;  // by the time at which it ends

  void Erase(uint64_t id, std::vector<OneShot<Unit>>* waiters);
  template <typename Which>
  void EraseAll(SessionId session, Which which);  // of the session's grants
};

}  // namespace nacre::mds
