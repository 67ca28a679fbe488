// File locks: BSD locks on whole files (flock) and POSIX record locks (fcntl), which do not see each other.
// In memory: after a restart the clients tell it again (Reclaim). Thread-safe; nothing waits inside.
//
// Errors: EAGAIN (held by another owner), EDEADLK (a POSIX wait that would close a circle), EINTR (a wait
// that was cancelled), EINVAL (a malformed range).
#pragma once

#include <absl/container/flat_hash_map.h>

#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "common/ids.h"
#include "common/status.h"
#include "common/task.h"
#include "proto/metadata.pb.h"

namespace nacre::mds {

class LockTable {
 public:
  static constexpr size_t kMaxWaiting = 65536;  // of one session; beyond them ENOLCK

  // Set at once, refused, or (with `wait`) under way: then the result holds the answer to come.
  struct Outcome {
    Status status;
    std::optional<OneShot<Status>> pending;
  };
  Outcome Set(SessionId session, const proto::LockRange& lock, bool wait, uint64_t wait_id);

  // Ends a wait with EINTR. False: there is none of this id.
  bool Cancel(SessionId session, uint64_t wait_id);

  // The first lock that is in the way; type F_UNLCK if there is none.
  StatusOr<proto::LockRange> Get(SessionId session, const proto::LockRange& lock);

  // Enters a lock that a client held before a restart. EAGAIN if somebody else has it.
  Status Reclaim(SessionId session, const proto::LockRange& lock);

  void DropSession(SessionId session);
  std::map<SessionId, uint64_t> CountBySession() const;

 private:
  struct Owner {
    SessionId session = 0;
    uint64_t id = 0;
    auto operator<=>(const Owner&) const = default;
  };
  struct Range {
    Owner owner;
    bool flock = false;
    bool exclusive = false;
    uint64_t start = 0;
    uint64_t end = 0;  // inclusive
    uint32_t pid = 0;
  };
  struct Waiter {
    Range range;
    uint64_t wait_id = 0;
    OneShot<Status> answer;
  };
  struct File {
    std::vector<Range> held;
    std::deque<Waiter> waiting;
    bool empty() const { return held.empty() && waiting.empty(); }
  };
  struct Answer {
    OneShot<Status> waiter;
    Status status;
  };

  static StatusOr<Range> Parse(SessionId session, const proto::LockRange& lock);
  static const Range* Conflict(const File& file, const Range& range);
  static bool Weakens(const File& file, const Range& range);
  static void Remove(File* file, const Range& range);  // the owner's part of this range
  static void Insert(File* file, const Range& range);
  void Wake(const Fid& fid, File* file, std::vector<Answer>* answers);
  // The locks that a session has and waits for, so that they need not be searched for among the files of all.
  struct Client {
    std::set<Fid> files;
    size_t waiting = 0;
  };

  void AddWaiter(const Fid& fid, File* file, Waiter waiter);
  void ForgetWaiter(const Fid& fid, const Waiter& waiter);
  // Ends the waits of this file that the condition names.
  template <typename Condition>
  void EndWaits(const Fid& fid, File* file, const Status& status, std::vector<Answer>* answers,
                Condition condition);
  std::set<Fid> FilesOf(SessionId session) const;
  // Takes file and client out of the tables where nothing is left in them.
  void Settle(const Fid& fid, SessionId session);
  bool ClosesCircle(const File& file, const Range& range) const;
  static void Deliver(std::vector<Answer> answers);

  mutable std::mutex mutex_;
  absl::flat_hash_map<Fid, File> files_;
  std::map<SessionId, Client> clients_;
  std::map<Owner, std::multiset<Fid>> waits_;  // of POSIX locks: where an owner waits
};

}  // namespace nacre::mds
