// One of several MDSes that hold copies of one MDT: a follower that keeps what the primary tells it, or the
// primary itself (docs/decisions/0066-copies-of-the-mdt.md).
//
// A member begins as a follower. AwaitPrimary ends when it has become the primary; then its owner starts a
// MetadataServer over store(), which commits to all members that are in sync. A primary never becomes a
// follower again: when AwaitEnd ends, its owner ends everything at once and begins anew with another Member
// over the same store. The coordinator says who is primary; no other way leads there.
//
// A commit to store() shows at once to whoever reads from it, and is with the others later. A message that
// leaves the process and may depend on a commit waits for that in WhenKept: MdsFront and NewWithheldTransport
// (withheld_transport.h) see to it.
//
// While the promises of the others last, a primary may answer; requests wait in AwaitAuthority for more, and
// answers that were made under promises that have lapsed are not given (MayServe).
//
// Lives in a shared_ptr, for its tasks; they run on the executor given. Thread-safe.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/random.h"
#include "common/status.h"
#include "common/task.h"
#include "proto/cluster.pb.h"
#include "rpc/copy_channel.h"
#include "rpc/mds_front.h"
#include "server/coordination/coordinator.h"
#include "server/kv/kv_store.h"

namespace nacre::replication {

struct MemberEnvironment {
  Executor executor;
  Clock& clock;
  Random& random;
  KvStore& store;  // local
  coordination::Coordinator& coordinator;
  CopyConnector& connector;
};

struct MemberOptions {
  std::string name;     // of this member among those of the filesystem: unique, no slash
  std::string address;  // where the others, clients and OSSes reach it
  std::string prefix;   // of the filesystem's keys in the coordinator, ends with a slash
  std::string boot;     // names this boot of the machine: after another one what was not synced may be gone
  // Where nothing is stored in the coordinator yet, this member's store is what the filesystem begins with.
  // False: it waits for another one (nacre-mds --format --copy).
  bool may_form = true;
  // An operator has decided: this member becomes primary after a loss of power although others that may have
  // more do not answer.
  bool accept_loss = false;

  Duration beacon = std::chrono::milliseconds(400);  // between two of them
  Duration promise = std::chrono::seconds(2);        // proto/copies.proto, Beacon
  Duration answer = std::chrono::seconds(1);         // a member that has not answered by then leaves the set
  uint64_t log_bytes = 64 << 20;                     // of changes that are kept for members that come back

  // Bugs planted for the simulation (docs/testing.md): never on otherwise.
  bool plant_early_ack = false;  // a commit is acknowledged before the others have it
  bool plant_unagreed = false;   // a member that does not answer is left out without asking the coordinator
  bool plant_unfenced = false;   // a primary goes on serving when the promises have lapsed
  bool plant_epochless = false;  // a member that joins is compared by the number of its last change alone
};

class Member : public CopyHandler, public Authority {
 public:
  // Opens the store's own records. FAILED_PRECONDITION: the store has an MDT of another filesystem than the
  // one in the coordinator, or one that never belonged to any; DATA_LOSS.
  static Task<StatusOr<std::shared_ptr<Member>>> Start(MemberEnvironment environment, MemberOptions options);

  // Tells the MDS how its member has become primary.
  struct Primacy {
    uint64_t epoch = 0;
    // For MetadataOptions.boot: the same as that of the primary before, unless changes may have been lost
    // that it had acknowledged without a sync.
    std::string boot;
  };
  // UNAVAILABLE when the member is stopped; the errors of Start, when they are found only now.
  virtual Task<StatusOr<Primacy>> AwaitPrimary() = 0;

  // Of a primary: the MDT. Outlives every use; valid while the member is.
  virtual KvStore& store() = 0;

  // Of a primary. Ends when it has been deposed, or its store has failed, and says why. Until then a member
  // whose promises lapse just waits.
  virtual Task<Status> AwaitEnd() = 0;

  // Of a primary. UNAVAILABLE when the member has ended or is stopped.
  bool MayServe() const override = 0;
  Task<Status> AwaitAuthority() override = 0;
  void WhenKept(absl::AnyInvocable<void(bool kept)> done) override = 0;

  // The address of the primary as this member knows it, which may be its own; empty: not known.
  virtual std::string primary_address() const = 0;

  // For nacre status: all members, this member's view.
  virtual proto::MdtCopies Describe() const = 0;
  // Likewise: why a copy of it could not take over, beyond what the members' states say. Empty: it could.
  virtual std::string Problem() const = 0;

  // Ends all tasks; a primary, whose MetadataServer has stopped, tells the others that they need not wait,
  // and a store that has been synced is marked so. Call before destruction, except to simulate a crash.
  virtual Task<Status> Stop() = 0;
};

// Makes a store, which has nothing in it, one that waits for its content from others (nacre-mds --format
// --copy): a Member over it never forms a filesystem. FAILED_PRECONDITION: there is something in it.
Task<Status> MarkBlank(KvStore* store);

}  // namespace nacre::replication
