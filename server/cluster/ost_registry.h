// The MGS's knowledge of the OSTs: who holds which index (for ever, in the store), where it is served,
// whether it is up, and the cluster map made of that. Also the way from here to an OST: one ObjectStub each.
//
// Thread-safe. Registrations are on stable storage before they are answered. Errors name the OST and what to
// do.
//
// An OSS may serve clients for ten heartbeats' time after it has sent one that was answered
// (common/lease_time.h; server/object/service_lease.h is the other side). So of each OST one of three things
// is true: it is up and can be told of an eviction; or it cannot be told, but its lease still runs; or its
// lease is over, it serves no client, and it will not before Register has admitted it again, which tells it
// what it has missed. FenceOrOutlive goes from the first to one of which nothing can come any more, in
// bounded time.
#pragma once

#include <absl/functional/any_invocable.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/status.h"
#include "common/task.h"
#include "proto/cluster.pb.h"
#include "rpc/object_stub.h"
#include "server/cluster/ost_choice.h"
#include "server/kv/kv_store.h"
#include "transport/transport.h"

namespace nacre::cluster {

struct RegistryOptions {
  std::string cluster_uuid;
  Duration heartbeat = std::chrono::seconds(1);
  bool plant_patient_fence = false;  // MetadataOptions

  Duration lease() const { return 10 * heartbeat; }
};

// The stored record of an OST, under (table kOstTable, index).
struct OstRecord {
  std::string uuid;
  std::string address;  // where it was last
  uint64_t total_bytes = 0;
};
inline constexpr char kOstTable = 0x40;
std::string OstKey(OstIndex index);
std::string EncodeOst(const OstRecord& record);
StatusOr<OstRecord> ParseOst(std::string_view data);

class OstRegistry {
 public:
  OstRegistry(KvStore& store, Clock& clock, Transport& transport, RegistryOptions options)
      : store_(store), clock_(clock), transport_(transport), options_(std::move(options)) {}

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

  Task<proto::RegisterOssReply> Register(proto::RegisterOssRequest request);
  // An OST that says it is failing is marked down; when it says so no more it has to register again.
  proto::HeartbeatReply Heartbeat(const proto::HeartbeatRequest& request);
  // Marks down what has missed five heartbeats.
  void CheckHeartbeats();

  proto::ClusterMap Map() const;
  // Up ones; all known ones when none is up. The same object until something changes.
  std::shared_ptr<const UsableOsts> Usable() const;
  std::vector<OstIndex> Known() const;
  bool IsUp(OstIndex index) const;
  uint64_t version() const;  // of the map: rises when an OSS registers or goes down
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
  // registry was closed; it is told before it counts as up again.
  Task<bool> FenceOrOutlive(OstIndex index, SessionId session);
  // A call that fails after a few seconds if the OST does not answer; no mutation (those of the MDS are
  // numbered by Stub()).
  Task<StatusOr<proto::ObjectReply>> CallShortly(proto::ObjectRequest request);
  StatusOr<std::shared_ptr<ObjectStub>> Stub(
      OstIndex index);  // ENODEV: no OST of that index was ever registered

 private:
  struct Ost {
    OstRecord record;
    proto::OstInfo info;
    bool up = false;
    bool asked = false;  // RefreshSpace is under way
    uint64_t instance = 0;
    Duration heard{0};  // when something of it was answered last that renews its lease
    std::shared_ptr<ObjectStub> stub;
    std::shared_ptr<ObjectStub> impatient;  // gives up on an OST that does not answer
  };
  proto::HeartbeatReply TakeHeartbeat(const proto::HeartbeatRequest& request, bool* changed);
  void Point(std::shared_ptr<ObjectStub>* stub, const std::shared_ptr<Peer>& peer, bool patient);

  Status CheckRequest(const proto::RegisterOssRequest& request) const;
  Status CheckOwner(const proto::OstInfo& info) const;
  Status CheckAndConnect(const proto::RegisterOssRequest& request);
  Task<Status> Store(const proto::RegisterOssRequest& request);  // call with registering_ held
  Status PointStub(Ost* ost);
  StatusOr<std::shared_ptr<Peer>> PeerOf(const std::string& address);
  uint64_t fences() const;
  // False: there have been fences since, which it must hear of first.
  bool MarkUp(const proto::RegisterOssRequest& request, uint64_t fences);
  void MarkDown(OstIndex index, std::string_view why);
  Duration ServesUntil(OstIndex index) const;  // while it is not up: at the latest
  proto::ClusterMap MapLocked() const;
  void Announce();

  KvStore& store_;
  Clock& clock_;
  Transport& transport_;
  const RegistryOptions options_;
  absl::AnyInvocable<void(const proto::ClusterMap&)> on_change_;
  absl::AnyInvocable<Task<Status>(OstIndex)> admit_;
  AsyncMutex registering_;  // one at a time: what was checked holds until it is stored
  mutable std::mutex mutex_;
  uint64_t first_sequence_ = 1;
  uint64_t version_ = 1;
  uint64_t fences_ = 0;  // rises with NoteFences
  bool closed_ = false;
  std::map<OstIndex, Ost> osts_;                      // whoever changes it resets usable_
  mutable std::shared_ptr<const UsableOsts> usable_;  // null: to be made when it is asked for
  std::map<std::string, std::shared_ptr<Peer>> peers_;
};

}  // namespace nacre::cluster
