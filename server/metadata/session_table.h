// All sessions, in memory and in the store. Thread-safe.
//
// After a restart the sessions of the store are waited for: until each has come back and reclaimed what it
// holds, or the recovery window is over.
#pragma once

#include <map>
#include <mutex>
#include <vector>

#include "common/latch.h"
#include "server/metadata/session.h"
#include "server/metadata/tables.h"

namespace nacre::mds {

class SessionTable {
 public:
  explicit SessionTable(Tables& tables) : tables_(tables) {}

  // Reads sessions and recorded replies from the store.
  Task<Status> Load(Duration now);

  SessionPtr Find(SessionId id) const;
  std::vector<SessionPtr> All() const;
  size_t Count() const;

  // Commits the new session.
  Task<StatusOr<SessionPtr>> Add(SessionId id, SessionRecord record, Duration now);
  SessionPtr FindByNonce(uint64_t nonce) const;
  // Removes it with its recorded replies.
  Task<Status> Remove(SessionPtr session);
  // Returns when the session has been removed.
  Task<void> AwaitGone(SessionId id);

  // Closed between Load and the end of recovery, if there were sessions.
  Latch& recovery() { return recovery_; }
  const Latch& recovery() const { return recovery_; }
  bool AllWhole() const;

  void Broadcast(const proto::Push& push) const;

 private:
  Task<Status> LoadReplies();

  Tables& tables_;
  mutable std::mutex mutex_;
  std::map<SessionId, SessionPtr> sessions_;
  Latch recovery_;
  std::multimap<SessionId, OneShot<Unit>> gone_waiters_;
};

}  // namespace nacre::mds
