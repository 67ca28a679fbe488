// The sessions of one OST: which are fenced (kept in the store), what each has asked for (so that a repeated
// request is answered, not done again), what is in progress, and the space promised to it. Thread-safe.
//
// A fence always ends. A request is asked twice whether it may go on: when it comes (Admit), and right before
// its change is committed (Ticket::BeginCommit), where it is refused if its session has been fenced or this
// server's lease has run out meanwhile. So a fence waits only for commits into the local store that have
// begun, never for a request that waits for its client (whose process may be frozen), for memory or for a
// lock.
//
// That a mutation has been carried out is also in the store, committed with its last change (journal.h):
// after a restart of the OSS a repeat is answered, and does not undo what others have written since. Of a
// request with several changes that the end of the process cuts short, those that were made are made again:
// nobody has been told yet that it is done. Failures are in memory only. A session that has been silent for
// long is forgotten, but for the MDS's.
//
// Where there are several MDSes, the primaries of past epochs are fenced in the same way (Obey).
#pragma once

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/ids.h"
#include "common/task.h"
#include "rpc/answer_slots.h"
#include "rpc/reply_cache.h"
#include "server/kv/kv_store.h"
#include "server/object/format.h"
#include "server/object/journal.h"
#include "server/object/service_lease.h"
#include "server/object/space.h"

namespace nacre::ost {

// Limits of the answers that are kept for one session.
inline constexpr ReplyLimits kMaxKept{kMaxAnswerSlots, size_t{64} << 20};

class Sessions {
 public:
  // `lease` (null: none is needed) and the others outlive this object.
  Sessions(KvStore* store, Journal* journal, Space* space, Clock* clock, const ServiceLease* lease)
      : store_(store), journal_(journal), space_(space), clock_(clock), lease_(lease) {}

  Status Load();  // the fenced ones, and the answers; before anything else

  // A request under way. Ends at destruction. A mutation that ends without Finish is forgotten: a repeat does
  // it.
  class Ticket : public Originator {
   public:
    Ticket() = default;
    // `answering`: to be recorded if RecordAnswer is called.
    Ticket(Sessions* sessions, SessionId session, uint64_t mdt_epoch, Answering answering)
        : sessions_(sessions), session_(session), mdt_epoch_(mdt_epoch), answering_(std::move(answering)) {}
    Ticket(Ticket&& other) noexcept { *this = std::move(other); }
    Ticket& operator=(Ticket&& other) noexcept;
    ~Ticket() override { Release(); }
    // From here on the request's last change takes its answer along. Only of a mutation.
    void RecordAnswer() { recorded_ = answering_.answer.record.sequence != 0; }
    // The answer of this request for good.
    void Finish(std::string reply);

    SessionId session() const override { return session_; }
    Status BeginCommit() override;
    void EndCommit() override;
    Answering* answering() override { return recorded_ ? &answering_ : nullptr; }
    HandedOn handed_on() const override { return handed_on_; }
    // The request comes from an earlier member of the chain.
    void SetHandedOn(HandedOn by) { handed_on_ = by; }
    // Of such a request: it has changed so many blocks in all, and a repeat by its client is answered so.
    void SetDelta(int64_t delta) { answering_.answer.record.delta = delta; }
    void FinishRecorded();

   private:
    void Release();
    Sessions* sessions_ = nullptr;
    SessionId session_ = 0;
    uint64_t mdt_epoch_ = 0;
    Answering answering_;  // its answer's sequence 0: no mutation
    bool recorded_ = false;
    HandedOn handed_on_;
  };

  struct Admission {
    // ESTALE: fenced, a late copy, or from a primary MDS of the past. ENOTCONN and ECONNRESET (ask again):
    // the session leaves too many answers unacknowledged; this server's lease has run out.
    Status status;
    std::optional<std::string> answer;  // it was done before
    std::optional<int64_t> recorded;    // by an earlier process, and lasts: the change of blocks
    Ticket ticket;
  };
  // sequence 0: no mutation. Waits if the same request is in progress. `mdt_epoch`: of the MDS; 0: there is
  // only one, or another member of the chain hands this on. `handed_on`: carried out all the same, for the
  // head does it still, and late copies are told apart by their turns: what the client has said it has the
  // answer to (the head is at work for an MDS that has been restarted), without an answer; and what a head
  // before had handed on and not done, since members behind this one may not have it.
  Task<Admission> Admit(SessionId session, uint64_t sequence, uint64_t low_water, uint64_t mdt_epoch = 0,
                        bool handed_on = false);

  // Refuses the MDSes of earlier epochs (but 0) from now on, also after a restart; OK once no commit of
  // theirs is under way. ESTALE: a later one has been heard of.
  Task<Status> Obey(uint64_t mdt_epoch);
  bool Obeys(uint64_t mdt_epoch) const;  // Obey has nothing to do and succeeds
  // Refuses earlier ones from now on, until the process ends. ESTALE as above.
  Status HearOf(uint64_t mdt_epoch);
  uint64_t mdt_epoch() const;  // the highest that was heard of; 0: none

  // Refuses the sessions (rpc/fence.h) from now on, also after a restart; returns when no commit of theirs is
  // under way. EINVAL: the MDS itself; or all below a number that is less than that of an earlier such fence:
  // the MDT then gives out numbers that are refused here.
  Task<Status> Fence(std::vector<SessionId> sessions);

  // Every answer that lies in the store, as far as its last sync (Journal::Sync) has brought them there.
  StatusOr<std::vector<SlotAnswer>> StoredAnswers() const;
  // Forgets every answer, also of what is under way, for Learn to bring those that count. Answers that do not
  // commit just now must not do so any more.
  Task<Status> ForgetAnswers();
  // Mutations that another member of the chain has carried out; their slots there do not matter here.
  Task<Status> Learn(std::vector<SlotAnswer> answers);
  StatusOr<std::vector<SessionId>> Fences() const;  // as Fence was given them

  // The session's grant becomes up to `want` bytes, as far as space and fairness allow. Returns what it is.
  Task<uint64_t> Reserve(SessionId session, uint64_t want);
  // Takes up to `bytes` out of the grant, for a write; in blocks.
  uint64_t TakeGrant(SessionId session, uint64_t bytes);
  uint64_t GrantOf(SessionId session) const;
  // Sessions silent for so long lose their grants.
  void DropSilentGrants(Duration silence);
  // Forgets sessions that have been silent for so long and hold no space, with their answers.
  void ForgetSilent(Duration silence);

  size_t size() const;

 private:
  struct Kept {
    std::optional<uint32_t> slot;
    std::optional<std::string> answer;
    std::optional<int64_t> recorded;
    bool forgotten = false;  // while it was under way: it leaves no answer
    bool done() const { return answer.has_value() || recorded.has_value(); }
    size_t bytes() const { return answer.has_value() ? answer->size() : 0; }
  };
  struct Session {
    Session()
        : requests(kMaxKept, [this](uint64_t, const Kept& kept) {
            if (kept.slot) slots.Free(*kept.slot);
          }) {}
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;
    bool HasSlot() const { return slots.any_free() || slots.count() < kMaxAnswerSlots; }

    AnswerSlots slots;
    uint64_t in_progress = 0;
    uint64_t committing = 0;               // of these, beyond BeginCommit
    std::vector<OneShot<Unit>> committed;  // when there is none
    uint64_t grant_blocks = 0;
    Duration last_seen{0};
    ReplyCache<Kept> requests;
  };

  Status CheckServed(SessionId session, uint64_t mdt_epoch) const;  // mutex_ held
  Status CheckPrimary(uint64_t mdt_epoch) const;                    // likewise
  bool IsFenced(SessionId session) const;                           // likewise
  Status CheckFence(SessionId fenced) const;
  std::vector<SessionId> NamedBy(
      const std::vector<SessionId>& fences) const;  // of those in memory; mutex_ held
  void NoteFence(SessionId fenced);                 // likewise, but for Load
  std::optional<OneShot<Unit>> Begin(SessionId id, Session* session, uint64_t sequence, uint64_t low_water,
                                     bool handed_on, Admission* admission,
                                     Answering* answering);  // mutex_ held
  Status BeginCommit(SessionId session, uint64_t mdt_epoch);
  void EndCommit(SessionId session);
  Status LoadAnswers();
  void End(SessionId session, uint64_t sequence);
  void ReleaseGrant(Session* session);
  Task<void> AwaitCommits(SessionId session);

  KvStore* const store_;
  Journal* const journal_;
  Space* const space_;
  Clock* const clock_;
  const ServiceLease* const lease_;
  mutable std::mutex mutex_;
  // That of a fenced session goes with the last of its requests.
  absl::flat_hash_map<SessionId, std::unique_ptr<Session>> sessions_;
  absl::flat_hash_set<SessionId> fenced_;
  SessionId first_served_ = 0;  // all below are fenced
  AsyncMutex obeying_;
  uint64_t heard_ = 0;   // MDSes of lower epochs are refused
  uint64_t obeyed_ = 0;  // the epoch whose MDS is obeyed: as heard_, when that is on stable storage
};

}  // namespace nacre::ost
