// The leases that are held, those that are being revoked, and what none are granted on at the moment. The
// table knows resources and modes, and no policy (directory_leases.h and change_guard.h decide). In memory: a
// client that comes back after a restart says what it held.
//
// Thread-safe. Every request asks about some resource, and a change does so six times, so a mutex for all was
// what the threads of an MDS waited for most: each of many shards has one for its resources. Questions about
// one resource are answered as of one moment; those about a session, and changes for it, as of one moment for
// each of its leases.
#pragma once

#include <absl/container/btree_map.h>
#include <absl/container/flat_hash_map.h>

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/ids.h"
#include "common/task.h"
#include "proto/metadata.pb.h"
#include "server/metadata/lease_index.h"

namespace nacre::mds {

struct LeaseGrant {
  uint64_t id = 0;
  Fid resource;
  SessionId session = 0;
  proto::LeaseMode mode = proto::LEASE_NONE;
  bool revoking = false;
  bool late = false;       // WRITE of a file, for data that comes late (late_data.h)
  Duration since{0};       // when it was granted, by the server's clock
  Duration asked_back{0};  // when it was first asked back

  proto::Lease ToProto() const;
};

class LeaseTable {
 public:
  // Ids begin here: other ones than those of an earlier process, which clients may still name.
  // `clock`, which must outlive this, says since when leases are held; null: nobody wants to know.
  explicit LeaseTable(uint64_t first_id, Clock* clock = nullptr) : index_(first_id), clock_(clock) {}

  // The grant of this session on the resource is made, or raised to this mode. One that is being given back
  // does not count, nor WRITE for who asks for READ: it is another purpose's, and goes back by its own
  // (late_data.h). The caller has made sure that no other session's conflicts.
  LeaseGrant Grant(SessionId session, const Fid& resource, proto::LeaseMode mode);
  // READ of a file. Nothing: another session has WRITE of it.
  std::optional<LeaseGrant> TryGrantFileRead(SessionId session, const Fid& file);
  // WRITE of a file for data that comes late, beside what the session may have of it already, which is
  // another purpose's.
  LeaseGrant GrantLate(SessionId session, const Fid& file);
  // READ for this session as well. Nothing: a change of the resource is under way, or was not long ago
  // (GrantNoneUntil); or the session has as many as one may have.
  std::optional<LeaseGrant> TryGrantRead(SessionId session, const Fid& resource, Duration now);
  // WRITE, in place of READ that the session may hold. Nothing: as above; or another session holds any, or
  // this one is about to give its own back.
  // `changing`: to who is changing the resource now (BeginChange), unless others have done so at the same
  // time: its answer may say how things were before their changes.
  std::optional<LeaseGrant> TryGrantWrite(SessionId session, const Fid& resource, Duration now,
                                          bool changing = false);
  // WRITE of a file to who is changing it now (BeginChange), beside READ that the session may have of it,
  // which is another purpose's; the one that it has, if it has one. Nothing: as above.
  std::optional<LeaseGrant> TryGrantFileWrite(SessionId session, const Fid& file, Duration now);
  // SHARED of a file, for one of several who write to it; WRITE or SHARED, if the session has that already.
  // Nothing: others have READ or WRITE, or are changing the file otherwise than beside those who share it;
  // or the session is about to give its own back.
  std::optional<LeaseGrant> TryGrantShared(SessionId session, const Fid& file);
  // Whether it will be granted to who is changing the resource now (BeginChange), as far as can be seen.
  bool MayGetWrite(SessionId changer, const Fid& resource, Duration now);
  // Whether the session may have as many leases more as it counts on before it has been given them: what it
  // does in a directory that it has just made is seen by nobody as long as the directory's lease is certain.
  bool HasAmpleRoom(SessionId session) const;
  // From here to as many calls of EndChange nothing is granted on it, to others at least; but SHARED, if the
  // change leaves those who have that as they are (`beside`).
  void BeginChange(const Fid& resource, SessionId changer, bool beside = false);
  void EndChange(const Fid& resource, bool beside = false);
  // Until then nothing of this mode is granted on it: READ, nothing at all; WRITE, that alone.
  void GrantNoneUntil(const Fid& resource, proto::LeaseMode mode, Duration time);

  // Enters a lease that a client says it held before a restart, or takes over its mode: the reply with a
  // higher one was lost. False: another session's grant conflicts.
  bool Restore(SessionId session, const proto::Lease& lease);

  // Grants of other sessions that conflict with `mode`: two conflict unless both are READ, or both SHARED.
  std::vector<LeaseGrant> Conflicts(const Fid& resource, SessionId session, proto::LeaseMode mode) const;
  bool HasConflict(const Fid& resource, SessionId session, proto::LeaseMode mode) const;
  std::vector<LeaseGrant> HoldersOf(const Fid& resource) const;
  std::vector<LeaseGrant> ReadersBut(SessionId session) const;  // all READ leases of other sessions
  // Whether it holds WRITE, or SHARED; being given back or not.
  bool HoldsWrite(SessionId session, const Fid& resource) const;
  // Whether it holds WRITE that is not for late data.
  bool MayHoldBack(SessionId session, const Fid& resource) const;
  // The number of its WRITE lease that nobody has asked back, and that is not for late data; 0: it has none.
  uint64_t GoodWrite(SessionId session, const Fid& resource) const;

  // WRITE, or SHARED, that the session has of the resource does not end before as many calls of Unpin,
  // whoever releases it: until then it counts as being given back. Nothing: the session has none.
  std::optional<LeaseGrant> Pin(SessionId session, const Fid& resource);
  void Unpin(const LeaseGrant& pinned);

  // From now on it counts as being given back. False: there is no such grant any more.
  bool BeginRevoke(uint64_t id);
  // Set when the grant is released or its session has ended; at once if there is none.
  OneShot<Unit> Released(uint64_t id);

  // The grant ends. Nothing happens for a foreign or unknown id.
  void Release(SessionId session, uint64_t id);
  // WRITE ends, and the session has READ in its place, under another id: so no answer that granted WRITE, and
  // is still under way, can be taken for that. Nothing, and WRITE stays: somebody changes the resource, or
  // waits to; or the session has no such lease, or has it pinned, or for late data.
  std::optional<LeaseGrant> TryKeepRead(SessionId session, uint64_t id, Duration now);
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
    uint32_t pins = 0;
    bool ending = false;  // it was released while it was pinned
  };
  // The grants of one resource. Very many sessions may read the same one, or share it, so what is asked with
  // each request looks at the session's own grants, and at the others' only where these are not all alike.
  struct Holders {
    absl::btree_map<std::pair<SessionId, uint64_t>, Slot> grants;  // by session and id
    size_t readers = 0, sharers = 0;                               // of these: READ, SHARED
    void Count(proto::LeaseMode mode, int more) {
      if (mode == proto::LEASE_READ) readers += more;
      if (mode == proto::LEASE_SHARED) sharers += more;
    }
  };
  // Says why TryGrantRead and TryGrantWrite refuse a resource, and until when.
  struct Blocked {
    uint32_t changes = 0;   // under way
    uint32_t beside = 0;    // of these: those that leave SHARED as it is
    SessionId changer = 0;  // whose these are
    bool mixed = false;     // those of others, too, since there was none
    Duration until{0};
    Duration write_until{0};  // WRITE; no earlier
  };
  static constexpr size_t kShards = 64;
  struct Shard {
    std::mutex mutex;  // for all functions below that take a shard
    absl::flat_hash_map<Fid, Holders> held;
    absl::flat_hash_map<Fid, Blocked> blocked;
    std::deque<std::pair<Duration, Fid>> quiet;  // when that of GrantNoneUntil ends; about in its order
  };
  using Waiters = std::vector<OneShot<Unit>>;

  // By other bits of the hash than those by which a shard's maps tell their keys apart.
  Shard& ShardOf(const Fid& resource) const {
    return (*shards_)[(absl::Hash<Fid>{}(resource) >> 32) % kShards];
  }

  // The first of the session's own grants that `which` is true of; null: of none.
  template <typename Which>
  static Slot* FindOwn(Shard& shard, SessionId session, const Fid& resource, Which which);
  static Slot* FindSlot(Shard& shard, uint64_t id, const LeaseIndex::Place& place);
  static bool HasConflict(Shard& shard, const Fid& resource, SessionId session, proto::LeaseMode mode);
  static bool OthersHold(Shard& shard, SessionId than,
                         const Fid& resource);  // anything; or it is about to give its own back
  // `changer`: its own changes may be under way; 0: none may.
  static bool MayGrant(Shard& shard, const Fid& resource, proto::LeaseMode mode, Duration now,
                       SessionId changer = 0);
  bool MayGrantWrite(Shard& shard, SessionId session, const Fid& resource, Duration now, bool changing);

  LeaseGrant Grant(Shard& shard, SessionId session, const Fid& resource, proto::LeaseMode mode);
  LeaseGrant Add(Shard& shard, SessionId session, const Fid& resource, proto::LeaseMode mode,
                 bool late = false);
  static void Enter(Shard& shard, const LeaseGrant& grant);
  static void SetMode(Shard& shard, LeaseGrant* grant, proto::LeaseMode mode);
  // It ends, when it is not pinned any more. To be set without the mutex: who waited for it.
  void End(Shard& shard, Slot* slot, Waiters* waiters);
  void Erase(Shard& shard, Slot* slot, Waiters* waiters);
  template <typename Which>
  void EndAll(SessionId session, Which which);  // of the session's grants

  // These take the mutexes themselves, and call with them held.
  template <typename Act>
  bool WithSlot(uint64_t id, Act act) const;  // false: there is no grant of this id
  template <typename Act>
  void ForEach(Act act) const;
  template <typename Which>
  std::vector<LeaseGrant> GrantsOf(const Fid& resource, Which which) const;
  template <typename Which>
  std::optional<LeaseGrant> OwnOf(SessionId session, const Fid& resource, Which which) const;

  Duration Now() const { return clock_ != nullptr ? clock_->Now() : Duration(0); }

  LeaseIndex index_;
  Clock* const clock_;
  const std::unique_ptr<std::array<Shard, kShards>> shards_ = std::make_unique<std::array<Shard, kShards>>();
};

}  // namespace nacre::mds
