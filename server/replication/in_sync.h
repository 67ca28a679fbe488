// The members that have everything which the primary has acknowledged, as the coordinator's record names
// them; their promises; and, from both, whether this primary may serve.
//
// A member counts as in the set from before the coordinator is asked to take it in until it is known that the
// coordinator has taken it out: whoever may become primary is waited for. Ends, for good, when the record
// says that somebody else is primary.
//
// Thread-safe. Lives in a shared_ptr.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/status.h"
#include "common/task.h"
#include "server/replication/judge.h"
#include "server/replication/member.h"

namespace nacre::replication {

class InSync {
 public:
  // The record says that this member is primary.
  InSync(const MemberOptions& options, Clock& clock, Judge& judge, Judge::Known known);

  uint64_t epoch() const { return epoch_; }
  const std::string& filesystem() const { return filesystem_; }

  // The primary itself is not among them.
  bool Contains(const std::string& name) const;
  std::vector<std::string> names() const;

  // From now on the member is waited for; Add follows, which asks the coordinator until it has said yes, or
  // the set ends.
  void Count(const std::string& name);
  Task<void> Add(std::string name);
  // Asks the coordinator once to take the member out; what came of that Contains says.
  Task<void> TryRemove(std::string name, std::string why);

  // If it is not known what has become of a change: has the coordinator say so. Once; does nothing otherwise.
  Task<void> Settle();

  // The member has promised to try nothing until then, by this clock. Also of one that is not in the set yet.
  void Promised(const std::string& name, Duration until);
  bool HasPromise(const std::string& name) const;

  // All that are in the set have promised, and nothing has ended.
  bool MayServe() const;
  Task<Status> AwaitAuthority();  // UNAVAILABLE: it has ended

  void End(Status why);  // the first counts
  bool ended() const;
  Task<Status> AwaitEnd();  // by one

 private:
  bool MayServeLocked() const;
  void Adopt(const Judge::Known& known, const MdtRecord& wanted);
  void WakeLocked();

  const std::string self_;
  const bool plant_unagreed_, plant_unfenced_;
  Clock& clock_;
  Judge& judge_;
  const uint64_t epoch_;
  const std::string filesystem_;

  AsyncMutex record_;                   // held while the coordinator is asked for a change
  Judge::Known known_;                  // with record_ held
  std::atomic<bool> unsettled_{false};  // a change of ours may have been carried out, or may be yet

  mutable std::mutex mutex_;
  std::set<std::string> members_;  // with those that are being added
  std::set<std::string> adding_;
  std::map<std::string, Duration> promises_;
  std::vector<OneShot<Unit>> waiters_;
  bool ended_ = false;
  OneShot<Status> end_;
};

}  // namespace nacre::replication
