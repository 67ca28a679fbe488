// The primary's side of the copies: a KvStore whose commits go to every member that is in sync before they
// take effect in the store here, and what brings the others into sync.
//
// A commit returns as soon as readers in this process see it, which is before the others have it
// (pipeline.h). So whatever of it leaves the process has to wait: answers and pushes do in MdsFront, requests
// to OSSes in the transport that NewWithheldTransport makes, both by WhenKept; Sync waits by itself. A
// snapshot has what all others have, and nothing else. A group of commits waits for each member of the set
// until it has answered or is out of the set.
//
// For each other member two tasks run: one asks for its promise, again and again, and has it taken out of the
// set when it does not answer; the other brings it back, by the groups that it lacks or by the whole store.
//
// Lives in a shared_ptr, for its tasks. Thread-safe. Keys of other than MDT records do not show (kOwnPrefix).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "proto/cluster.pb.h"
#include "server/replication/in_sync.h"
#include "server/replication/neighbours.h"
#include "server/replication/pipeline.h"
#include "server/replication/store_copy.h"

namespace nacre::replication {

class Primary : public KvStore, public std::enable_shared_from_this<Primary> {
 public:
  Primary(const MemberEnvironment& environment, const MemberOptions& options, StoreCopy& copy,
          Neighbours& neighbours, std::shared_ptr<InSync> in_sync);

  // Makes the first change of the epoch, alone, and begins with the others.
  Task<Status> Start();
  // Ends the set; with the others told, who need not wait then, if nothing is under way any more.
  Task<void> Resign();

  // From a member that takes itself for something else.
  Task<proto::CopyReply> Handle(proto::CopyRequest request);
  proto::MdtCopies Describe() const;
  // Tells an administrator that the coordinator is silent. Empty: it is not.
  std::string Problem() const;

  // Pipeline::WhenKept of what was committed before.
  void WhenKept(Pipeline::Done done) { pipeline_.WhenKept(std::move(done)); }

  StatusOr<std::string> Get(std::string_view key) override;
  StatusOr<std::vector<KvEntry>> Scan(std::string_view from, std::string_view to, size_t limit) override;
  StatusOr<KvEntry> Last(std::string_view from, std::string_view to) override;
  StatusOr<std::unique_ptr<KvSnapshot>> Snapshot() override;
  Task<Status> Commit(KvBatch batch) override;
  Status Admit(KvBatch* batch) override { return copy_.store().Admit(batch); }
  Task<Status> Sync() override;
  Space GetSpace() override { return copy_.store().GetSpace(); }
  uint64_t UsedBytes() override { return copy_.store().UsedBytes(); }

 private:
  struct Link {  // to another member
    explicit Link(std::string name) : name(std::move(name)) {}
    const std::string name;
    // With mutex_ held:
    Position position;
    Duration answered{0};
    std::string state = "not heard of yet";
  };
  using LinkPtr = std::shared_ptr<Link>;

  // Keeps anything from being changed or being on its way while it lives: the store here and those of the
  // others in the set have the same then.
  struct Pause {
    AsyncMutex::Guard turn, storing;
  };
  Task<Pause> AwaitPause();

  // The commits of others (primary.cc).
  Task<StatusOr<Pipeline::Store>> Write(Pipeline::Changes changes);
  Task<void> Send(GroupPtr group);
  Task<Status> Store(GroupPtr group, AsyncMutex::Guard storing);
  // Makes a request, which may be large, once for each time that it is sent.
  using MakeRequest = std::function<proto::CopyRequest(std::string to)>;
  Task<Unit> Deliver(std::string name, MakeRequest make);
  Task<void> DeliverToAll(MakeRequest make);
  Task<Status> SyncAll();
  proto::CopyRequest NewRequest(const std::string& to) const;
  // Learns from a reply who is primary. OK: the member has done what it was asked for.
  Status Check(const StatusOr<proto::CopyReply>& reply);

  // The others (links.cc).
  static Task<void> LookForOthers(std::shared_ptr<Primary> self);
  static Task<void> AskForPromises(std::shared_ptr<Primary> self, LinkPtr link);
  Task<void> AskForPromise(LinkPtr link);
  static Task<void> BringBack(std::shared_ptr<Primary> self, LinkPtr link);
  Task<Status> Join(LinkPtr link);
  Task<StatusOr<Position>> CopyAll(LinkPtr link, Position instead_of);
  Task<StatusOr<Position>> CatchUp(LinkPtr link, Position position);
  Task<Status> SayWhole(const std::string& name, uint64_t instance, Duration timeout);
  Task<Status> Tell(proto::CopyRequest request, Duration timeout);
  void SetState(const LinkPtr& link, std::string state);
  void NoteCoordinator(const Status& answer);

  const Executor executor_;
  Clock& clock_;
  Random& random_;
  const MemberOptions options_;
  StoreCopy& copy_;
  Neighbours& neighbours_;
  const std::shared_ptr<InSync> in_sync_;

  // Each is held while a group is on its way to the others, or into the store here: one and then the other.
  AsyncMutex turn_, storing_;
  Position sent_;  // of the newest group that is or was on its way; with turn_ held
  Pipeline pipeline_;

  AsyncMutex sync_;
  std::atomic<uint64_t> syncs_asked_{0};
  uint64_t synced_ = 0;  // every call up to this one; with sync_ held

  mutable std::mutex mutex_;
  std::map<std::string, LinkPtr> links_;
  Duration coordinator_heard_{0};
  Status coordinator_silent_;  // not OK: it has not answered for kCoordinatorPatience, and what it said last
};

// The message that a group is sent as.
proto::ApplyGroup MessageOf(const Group& group);

}  // namespace nacre::replication
