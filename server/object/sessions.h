// What one OST knows of the sessions: which are fenced (kept in the store), what each has asked for (so that
// a repeated request is answered, not done again), what is in progress, and the space promised to it.
// Thread-safe.
//
// The answers are in memory only: after a restart of the OSS a repeated request is carried out again, which
// gives the same result, because connections and with them late copies of older requests died with the old
// process.
#pragma once

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/ids.h"
#include "common/task.h"
#include "server/kv/kv_store.h"
#include "server/object/space.h"

namespace nacre::ost {

class Sessions {
 public:
  Sessions(KvStore* store, Space* space, Clock* clock) : store_(store), space_(space), clock_(clock) {}

  Status Load();  // the fenced ones

  // A request under way. Ends at destruction. A mutation that ends without Finish is forgotten: a repeat does
  // it.
  class Ticket {
   public:
    Ticket() = default;
    Ticket(Sessions* sessions, SessionId session, uint64_t sequence)
        : sessions_(sessions), session_(session), sequence_(sequence) {}
    Ticket(Ticket&& other) noexcept { *this = std::move(other); }
    Ticket& operator=(Ticket&& other) noexcept;
    ~Ticket() { Release(); }
    // The answer of this request for good.
    void Finish(std::string reply);

   private:
    void Release();
    Sessions* sessions_ = nullptr;
    SessionId session_ = 0;
    uint64_t sequence_ = 0;
  };

  struct Admission {
    Status status;                      // ESTALE: fenced, or a late copy
    std::optional<std::string> answer;  // it was done before
    Ticket ticket;
  };
  // sequence 0: no mutation. Waits if the same request is in progress.
  Task<Admission> Admit(SessionId session, uint64_t sequence, uint64_t low_water);

  // Refuses the session from now on, also after a restart; returns when nothing of it is in progress.
  Task<Status> Fence(SessionId session);

  // The session's grant becomes up to `want` bytes, as far as space and fairness allow. Returns what it is.
  Task<uint64_t> Reserve(SessionId session, uint64_t want);
  // Takes up to `bytes` out of the grant, for a write; in blocks.
  uint64_t TakeGrant(SessionId session, uint64_t bytes);
  uint64_t GrantOf(SessionId session) const;
  // Sessions silent for so long lose their grants.
  void DropSilentGrants(Duration silence);

  size_t size() const;

 private:
  struct Request {
    std::optional<std::string> answer;
    std::vector<OneShot<Unit>> waiting;
  };
  struct Session {
    uint64_t low_water = 0;
    std::map<uint64_t, Request> requests;  // by sequence
    uint64_t in_progress = 0;
    std::vector<OneShot<Unit>> drained;
    uint64_t grant_blocks = 0;
    Duration last_seen{0};
  };

  void End(SessionId session, uint64_t sequence);
  void ReleaseGrant(Session* session);

  KvStore* const store_;
  Space* const space_;
  Clock* const clock_;
  mutable std::mutex mutex_;
  absl::flat_hash_map<SessionId, std::unique_ptr<Session>> sessions_;
  absl::flat_hash_set<SessionId> fenced_;
};

}  // namespace nacre::ost
