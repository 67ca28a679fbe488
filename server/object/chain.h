// This store's place in the chain of its OST (docs/decisions/0064-chains-of-osts.md): whether it serves
// clients, and the way from here to the members behind it.
//
//   waiting   the MGS has not said (since this process began, or since another member took the place)
//   head      serves clients and the MDS, hands changes on to the next member and to those that join
//   member    takes changes from the one before, hands them on to the next
//   joining   takes changes from the head, which fills it (server/object/filling.h)
//
// The MGS alone decides. A member that is told of a later epoch takes nothing from those who still act by an
// earlier one. A head that cannot reach a member goes on when the MGS has taken that one out of the chain; if
// it cannot reach the MGS either, what it has begun waits, until it is told that it is head no more.
//
// Thread-safe. The core, the store and the sessions outlive it.
#pragma once

#include <absl/functional/any_invocable.h>

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "common/status.h"
#include "common/task.h"
#include "proto/cluster.pb.h"
#include "proto/object.pb.h"
#include "server/object/chain_link.h"
#include "server/object/heard_turns.h"
#include "server/object/in_doubt.h"
#include "server/object/journal.h"
#include "server/object/object_store.h"
#include "server/object/sessions.h"

namespace nacre::ost {

class Filling;
class ServerCore;

class Chain : public Replicator {
 public:
  // Asks the MGS (proto/cluster.proto, ReportChain).
  using Report = absl::AnyInvocable<Task<StatusOr<proto::ReportChainReply>>(proto::ReportChainRequest)>;

  Chain(ServerCore* core, ObjectStore* store, Sessions* sessions, Report report);
  ~Chain() override;

  // A client's or the MDS's request. ECONNRESET: another member is the one to ask, or none is yet, or this
  // head compares itself with the member behind it first.
  Status CheckHead() const;
  // A client's read that any member may answer (ReadObjects.versions in proto/object.proto). ECONNRESET: this
  // one may lack what the others have.
  Status CheckInSync() const;
  // Judge what another member hands on. ESTALE: it acts by an epoch that is over, or this is a late copy.
  // ECONNRESET: this one has not been told of its epoch yet. Hear is for a request that comes; CheckFrom asks
  // again right before a change is made, for it may have waited, and another copy of it been answered and
  // followed by others.
  Status Hear(const proto::ObjectRequest& request);
  Status CheckFrom(HandedOn by) const;
  bool joining() const;
  int place() const;  // 0: the head
  uint32_t epoch() const override;

  // ENODEV: `told.member` is another store. ESTALE: of an epoch before the one that is known, or it names a
  // process of this server from before.
  Status Set(const proto::SetChain& told);

  // The objects that this member may have changed and the one before it has not.
  std::set<ObjectId> InDoubtObjects() const;

  Task<Status> HandOn(const OutgoingChange& change) override;
  void NoteFailure(const Status& why) override;
  Task<Status> FetchBlock(WantedBlock wanted, std::span<std::byte> page) override;
  Task<Status> FetchFromAny(WantedBlock wanted, std::span<std::byte> page) override;
  // Has the members behind carry out a request that changes no object (sync, fence, …) as well.
  Task<Status> HandOnRequest(proto::ObjectRequest request);

  // --- for the filling of a member ---

  // Whether the member joins the chain still, as the same process.
  bool Joins(const Filling& filling) const;
  // It has everything that this store has: the MGS is asked to put it into the chain. OK: it has.
  Task<Status> Joined(const Filling& filling);
  // It does not answer, or does not take what it is given.
  Task<void> GiveUp(std::string member, uint32_t epoch, Status why);

  // --- for the scrubber (chain_scrub.cc) ---

  // Whether this member has everything that it should.
  bool IsInSync() const;
  struct Digests {
    uint32_t epoch = 0;  // of the chain
    std::vector<proto::MemberDigest> members;
  };
  // Asks the members behind this one for digests of the range (DigestObject in proto/object.proto), which the
  // caller has locked.
  Task<StatusOr<Digests>> AskDigests(ObjectId object, uint64_t first, uint64_t count);
  // The member has something else in this object than this head: it is taken out of the chain, and comes back
  // when it has been filled, for which it does not count what version of the object it has.
  Task<void> FillAnew(std::string member, uint32_t epoch, ObjectId object);
  bool Distrusts(const std::string& member, const ObjectId& object) const;
  void Trust(const std::string& member, const ObjectId& object);

 private:
  enum class Role { kWaiting, kHead, kMember, kJoining };
  using LinkPtr = std::shared_ptr<ChainLink>;
  using FillingPtr = std::shared_ptr<Filling>;
  struct View {
    Role role = Role::kWaiting;
    uint32_t epoch = 0;
    LinkPtr next;                      // null: this is the last one
    std::vector<FillingPtr> fillings;  // those that changes are handed on to
  };
  struct Outgoing {  // to one member
    proto::ObjectRequest request;
    std::vector<ExtentEdit> edits;
  };

  View Look() const;
  bool HasPlace() const;
  bool Current(uint32_t epoch) const;
  Status CheckFromLocked(HandedOn by) const;
  LinkPtr LinkTo(const proto::ChainMember& member, const std::vector<LinkPtr>& known) const;
  std::vector<FillingPtr> SetFillings(const proto::Chain& chain, const std::vector<FillingPtr>& before,
                                      const std::vector<LinkPtr>& known);  // mutex_ held
  Status CheckMeant(const proto::Chain& chain) const;
  std::string_view RoleName() const;
  void BecomeWaiting(uint32_t epoch);
  std::optional<Outgoing> MessageFor(const OutgoingChange& change, Filling* filling) const;
  Task<Status> Send(const LinkPtr& link, uint32_t epoch, Outgoing outgoing);
  static Task<void> SendUnawaited(std::shared_ptr<ServerCore> core, Chain* chain, LinkPtr link,
                                  uint32_t epoch, Outgoing outgoing, ObjectStore::Gathered gathered);
  Task<Status> HandOnAsHead(const OutgoingChange& change);
  Task<Status> HandOnAsMember(const OutgoingChange& change);
  Task<StatusOr<proto::ObjectReply>> Call(LinkPtr link, uint32_t epoch, proto::ObjectRequest request,
                                          std::vector<MemorySpan> memory, Duration timeout);
  struct Asked {
    LinkPtr link;
    uint32_t epoch = 0;  // 0: the head, which hears it as from the MDS: nothing of the chain's order is meant
  };
  std::vector<Asked> ThoseToAsk(uint32_t epoch, bool also_head) const;
  bool AwaitsOthers() const;
  Task<Status> Fetch(WantedBlock wanted, std::span<std::byte> page, bool also_head);
  Task<Status> FetchFrom(Asked asked, WantedBlock wanted, std::span<std::byte> page);
  Task<StatusOr<proto::Chain>> Ask(proto::ReportChainRequest request);
  static Task<void> Settle(std::shared_ptr<ServerCore> core, Chain* chain, uint32_t epoch);
  Task<Status> CompareWith(LinkPtr next, uint32_t epoch);
  static Task<void> StepDown(std::shared_ptr<ServerCore> core, Chain* chain, uint32_t epoch, Status why);

  ServerCore* const core_;
  ObjectStore* const store_;
  Sessions* const sessions_;
  const std::string uuid_;
  Report report_;

  mutable std::mutex mutex_;
  Role role_ = Role::kWaiting;
  uint32_t epoch_ = 0;
  int place_ = 0;
  HeardTurns heard_;  // of what is handed on in this epoch
  LinkPtr next_;
  proto::ChainMember head_;  // of a member that is not the head
  std::vector<FillingPtr> fillings_;
  // The head: what it does not believe of members, whatever versions they have (FillAnew).
  std::map<std::string, std::set<ObjectId>> distrusted_;
  InDoubt in_doubt_;
  bool settling_ = false;                // the head: it compares itself with the next member
  std::optional<Duration> alone_since_;  // the head: when it lost the last of the others; none: it has some
};

}  // namespace nacre::ost
