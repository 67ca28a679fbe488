// The MGS's knowledge of the OSTs: who holds which index (for ever, in the store), where it is served,
// whether it is up, and the cluster map made of that. Also the way from here to an OST: one ObjectStub each.
//
// Thread-safe. Registrations are on stable storage before they are answered. Errors name the OST and what to
// do.
//
// An OSS may serve clients for ten heartbeats' time after it has sent one that was answered
// (common/lease_time.h; server/object/service_lease.h is the other side). So of each OST one of three things
// is true: it is up and can be told of an eviction; or it cannot be told, but its lease still runs; or its
// lease is over (or its process, of which a witness tells: HeartbeatRequest), it serves no client, and it
// will not before Register has admitted it again, which tells it what it has missed. FenceOrOutlive goes from
// the first to one of which nothing can come any more, in bounded time.
//
// An OST of several members (docs/decisions/0064-chains-of-osts.md) is up while the head of its chain is and
// knows it, and the way to the OST leads to the head; all else about it is ChainKeeper's. Its OSSes have
// shorter leases, so that a dead head is replaced soon. An OST of one member has nothing to do with this.
//
// An OST may be drained and removed (ost_use.cc). One that has been removed is not known any more: nobody
// waits for it, tells it anything or counts it. Its record stays, so that its index never means another one.
#pragma once

#include <absl/functional/any_invocable.h>

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/status.h"
#include "common/task.h"
#include "proto/cluster.pb.h"
#include "rpc/object_stub.h"
#include "server/cluster/chain_owner.h"
#include "server/cluster/ended_processes.h"
#include "server/cluster/ost_choice.h"
#include "server/cluster/ost_record.h"
#include "server/kv/kv_store.h"
#include "transport/transport.h"

namespace nacre::cluster {

struct RegistryOptions {
  std::string cluster_uuid;
  Duration heartbeat = std::chrono::seconds(1);
  bool plant_patient_fence = false;  // MetadataOptions
  uint64_t epoch = 0;                // MetadataOptions
  uint64_t instance = 0;             // Mds

  Duration lease() const { return 10 * heartbeat; }  // of an OSS without chains
};

class ChainKeeper;

class OstRegistry : private ChainOwner {
 public:
  OstRegistry(KvStore& store, Clock& clock, Transport& transport, RegistryOptions options);
  ~OstRegistry() override;

  // Before anything else. From `first_sequence` on this process numbers its changes of objects (ObjectStub).
  Status Load(uint64_t first_sequence);
  // Ends all calls to the OSSes.
  void Close();
  // Called (outside of all locks) with each new cluster map. Set it before the first call.
  void SetOnChange(absl::AnyInvocable<void(const proto::ClusterMap&)> on_change) {
    on_change_ = std::move(on_change);
  }
  // Before an OST counts as up: what has to be done at it first (fences that it missed). May be called more
  // than once for a registration. Set it before the first call.
  void SetAdmit(absl::AnyInvocable<Task<Status>(OstIndex)> admit) { admit_ = std::move(admit); }
  // The sessions whose fences the OST has missed. Set it before the first call.
  void SetMissed(absl::AnyInvocable<StatusOr<std::vector<SessionId>>(OstIndex)> missed) {
    missed_ = std::move(missed);
  }
  // Gives what keeps this registry alive, for the tasks that keep chains; null: it is ending. Set it before
  // the first call, unless nothing is destroyed before what runs has ended.
  void SetHold(absl::AnyInvocable<std::shared_ptr<void>()> hold) { hold_ = std::move(hold); }

  Task<proto::RegisterOssReply> Register(proto::RegisterOssRequest request);
  // An OST that says it is failing is marked down; when it says so no more it has to register again. The OSTs
  // of a process that has ended are down, and can serve nobody.
  proto::HeartbeatReply Heartbeat(proto::HeartbeatRequest request);
  // Tells every OSS with the answer to its next heartbeat, unless a newer order was given.
  void OrderScrub(proto::ScrubOrder order);
  Task<proto::ReportChainReply> ReportChain(proto::ReportChainRequest request);
  // Marks down what has missed five heartbeats; chains have a look at theirs by themselves.
  void CheckHeartbeats();

  proto::ClusterMap Map() const;
  // Up ones; all known ones when none is up. The same object until something changes.
  // A caller that places objects by it keeps it until the commit that places them has returned
  // (MayYetPlaceOn).
  std::shared_ptr<const UsableOsts> Usable() const;
  std::vector<OstIndex> Known() const;
  bool IsUp(OstIndex index) const;
  bool IsDown(OstIndex index) const;      // known, and not up
  bool IsFailing(OstIndex index) const;   // its process says so: it is not up, and goes on serving clients
  uint64_t RoomOf(OstIndex index) const;  // bytes that are free there, as it has said last; 0: it is not up

  // --- what it is used for ---
  OstUse UseOf(OstIndex index) const;
  std::vector<OstIndex> Removed() const;
  uint32_t CopiesOf(OstIndex index) const;  // how many members it is to have; also of one that is gone
  // Whether a layout that names the OST may get objects there: it is in the cluster, and not being drained.
  bool TakesObjects(OstIndex index) const { return UseOf(index) == OstUse::kActive && Knows(index); }
  // Keeps everybody else from changing the use of the OST as long as it lives: a removal looks at all files,
  // and relies on it that nobody lets the OST have new ones meanwhile. EBUSY: somebody has it.
  using UseChange = std::shared_ptr<void>;
  StatusOr<UseChange> BeginUseChange(OstIndex index);
  // Stores it, durably. ENODEV: there is no such OST, or it has been removed.
  Task<Status> SetUse(OstIndex index, OstUse use);
  // Takes the OST out of the cluster. Calls to it that are under way end with ENODEV.
  Task<Status> Remove(OstIndex index, OstUse how);
  // Whether somebody has chosen from a Usable that had it, and may not have committed yet.
  bool MayYetPlaceOn(OstIndex index) const;
  // Of one that is not up: returns when it can serve no client any more by its lease. False: it has come up.
  Task<bool> AwaitOutlived(OstIndex index);
  // Of the map: rises when an OSS registers or goes down, or a chain changes.
  uint64_t version() const;
  // Asks the OST for its space, for Map and Usable. Waits a few seconds for one that does not answer; does
  // nothing while it is being asked already.
  Task<void> RefreshSpace(OstIndex index);

  // Tells the OST to refuse these sessions. Fails after a few seconds if the OST does not answer.
  Task<Status> Fence(OstIndex index, std::vector<SessionId> sessions);
  // Call when it is in the store that the sessions are to be fenced, so that an OST that is being admitted
  // just now hears of it.
  void NoteFences();
  // After NoteFences: returns when no client of that session is served by the OST any more. True: it has been
  // told. False: its lease is over (an OST that does not answer is taken out of service for that), or this
  // registry was closed; it is told before it counts as up again. Of several members the head is told, which
  // hands it on; if it cannot be, whoever is the next head.
  Task<bool> FenceOrOutlive(OstIndex index, SessionId session);
  // A call that fails after a few seconds if the OST does not answer; no mutation (those of the MDS are
  // numbered by Stub()).
  Task<StatusOr<proto::ObjectReply>> CallShortly(proto::ObjectRequest request);
  StatusOr<std::shared_ptr<ObjectStub>> Stub(
      OstIndex index);  // ENODEV: no OST of that index was ever registered

 private:
  struct Ost {
    OstUse use = OstUse::kActive;
    bool chained = false;  // of several members: what follows, but for the stubs, means nothing
    OstRecord record;      // of one member
    proto::OstInfo info;
    bool up = false;
    bool asked = false;  // RefreshSpace is under way
    uint64_t instance = 0;
    bool ended = false;  // that process
    Duration heard{0};   // when something of it was answered last that renews its lease
    std::shared_ptr<ObjectStub> stub;
    std::shared_ptr<ObjectStub> impatient;  // gives up on an OST that does not answer
  };
  void TakeEnd(uint64_t instance);
  proto::HeartbeatReply TakeHeartbeat(const proto::HeartbeatRequest& request, bool* changed);
  void Point(Ost* ost, const std::shared_ptr<Peer>& peer);
  void PointOne(std::shared_ptr<ObjectStub>* stub, const std::shared_ptr<Peer>& peer, RetryPolicy policy);

  // ChainOwner
  StatusOr<std::shared_ptr<Peer>> Connect(const std::string& address) override;
  void PointTo(OstIndex index, const std::shared_ptr<Peer>& head) override;
  void Changed() override;
  uint64_t fences() const override;
  bool IfNoFenceSince(uint64_t fences, absl::AnyInvocable<void()> mark) override;
  StatusOr<std::vector<SessionId>> MissedFences(OstIndex index) override;
  Task<Status> AdmitHead(OstIndex index) override;
  std::shared_ptr<void> Hold() override;

  bool Knows(OstIndex index) const;
  Status UnknownOst(OstIndex index) const;  // with mutex_ held: why there is none
  // Takes what has been removed out of the list, and returns it.
  std::vector<OstIndex> TakeRemoved(google::protobuf::RepeatedPtrField<proto::OstInfo>* osts) const;
  void ResetUsable();  // with mutex_ held
  Task<Status> StoreUse(OstIndex index, OstUse use);
  StatusOr<uint32_t> CheckVersion(const proto::RegisterOssRequest& request);
  Status CheckRequest(const proto::RegisterOssRequest& request) const;
  Status CheckOwner(const proto::OstInfo& info) const;
  Status CheckMember(const proto::RegisterOssRequest& request, const proto::OstInfo& info) const;
  bool IsChained(const proto::OstInfo& info) const;  // is, or is to be
  Status CheckAndConnect(const proto::RegisterOssRequest& request);
  // Call these with registering_ held.
  Task<Status> Store(const proto::RegisterOssRequest& request);
  Task<Status> Admit(const proto::RegisterOssRequest& request);
  Task<Status> EnterChains(const proto::RegisterOssRequest& request);
  // Not this: members wait for each other.
  Task<Status> AwaitChains(const proto::RegisterOssRequest& request);
  void AdoptChain(OstIndex index);
  Status StartChain(OstIndex index, const Executor& executor);
  Status PointStub(Ost* ost);
  StatusOr<std::shared_ptr<Peer>> PeerOf(const std::string& address);
  // False: there have been fences since, which it must hear of first.
  StatusOr<bool> MarkUp(const proto::RegisterOssRequest& request, uint64_t fences);
  void MarkDown(OstIndex index, std::string_view why);
  bool IsUpLocked(OstIndex index, const Ost& ost) const;
  Duration ServesUntil(OstIndex index) const;  // while it is not up: at the latest
  proto::ClusterMap MapLocked() const;
  void Announce();

  KvStore& store_;
  Clock& clock_;
  Transport& transport_;
  const RegistryOptions options_;
  absl::AnyInvocable<void(const proto::ClusterMap&)> on_change_;
  absl::AnyInvocable<Task<Status>(OstIndex)> admit_;
  absl::AnyInvocable<StatusOr<std::vector<SessionId>>(OstIndex)> missed_;
  absl::AnyInvocable<std::shared_ptr<void>()> hold_;
  AsyncMutex registering_;  // one at a time: what was checked holds until it is stored
  mutable std::mutex mutex_;
  uint64_t first_sequence_ = 1;
  uint64_t version_ = 1;
  uint64_t fences_ = 0;      // rises with NoteFences
  proto::ScrubOrder scrub_;  // the newest; number 0: none
  bool closed_ = false;
  std::map<OstIndex, Ost> osts_;                      // whoever changes it calls ResetUsable
  std::map<OstIndex, OstRecord> removed_;             // those that are gone
  mutable std::shared_ptr<const UsableOsts> usable_;  // null: to be made when it is asked for
  // Those before it that somebody may still choose from.
  std::vector<std::weak_ptr<const UsableOsts>> former_usable_;
  std::set<OstIndex> changing_use_;
  std::map<std::string, std::shared_ptr<Peer>> peers_;
  std::set<std::string> refused_;  // addresses of OSSes that speak another version
  EndedProcesses ended_;
  const std::unique_ptr<ChainKeeper> chains_;
};

}  // namespace nacre::cluster
