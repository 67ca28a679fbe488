// The follower's side of the copies: keeps what the primary tells it, promises not to become primary for a
// while with each beacon, and tries to when the promises have lapsed and the record says that it may.
//
// Lives in a shared_ptr. Thread-safe.
#pragma once

#include <mutex>
#include <string>

#include "server/replication/judge.h"
#include "server/replication/member.h"
#include "server/replication/neighbours.h"
#include "server/replication/store_copy.h"

namespace nacre::replication {

class Follower {
 public:
  // A member that has just begun has promised, for all it knows. `own_mdt`: the store has an MDT that has
  // never belonged to a filesystem of several members; it is written to by nobody.
  Follower(MemberEnvironment environment, const MemberOptions& options, StoreCopy& copy, Judge& judge,
           Neighbours& neighbours, bool own_mdt);

  // Answers a request of another member.
  Task<proto::CopyReply> Handle(proto::CopyRequest request);

  // Returns when this member is primary by the record, with that; from then on Handle does nothing any more.
  // UNAVAILABLE when it was stopped; FAILED_PRECONDITION: the store does not belong to the filesystem.
  Task<StatusOr<Judge::Known>> AwaitTurn();
  void Stop();

  std::string primary() const;  // by name; empty: not known

 private:
  Status CheckSender(const proto::CopyRequest& request);  // also notes a later epoch
  Task<Status> Carry(proto::CopyRequest request);
  Task<Status> ApplyGroup(proto::CopyRequest request);
  Status Promise(const proto::CopyRequest& request);
  Status CheckFollowing() const;

  Duration PromisedFor() const;
  bool stopped() const;
  Task<Status> CheckFilesystem(const Judge::Known& known);
  Task<bool> MayTry(const Judge::Known& known);
  Task<bool> HasMost(const MdtRecord& record);
  // Empty record: somebody else was first.
  Task<StatusOr<Judge::Known>> TakeOver(Judge::Known known);
  Task<StatusOr<MdtRecord>> AsPrimary(const Judge::Known& known);

  const MemberEnvironment environment_;
  const MemberOptions options_;
  StoreCopy& copy_;
  Judge& judge_;
  Neighbours& neighbours_;
  const bool own_mdt_;
  const uint64_t instance_;

  AsyncMutex work_;  // held while the store is changed, and while this member becomes primary

  mutable std::mutex mutex_;
  enum class State { kFollowing, kTrying, kLeading, kStopped } state_ = State::kFollowing;
  uint64_t epoch_ = 0;  // the latest heard of
  std::string primary_;
  Duration promised_until_;
};

}  // namespace nacre::replication
