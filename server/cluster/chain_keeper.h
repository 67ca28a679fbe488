// Keeps the chains of the OSTs of several members: stores what OstChain decides, and tells the members.
//
// Each such OST has one background task, from the first registration of a member on until Close. It makes the
// changes that are due, tells the members behind the head of them (at the same time), then the head, and
// waits until something happens or time makes something due. A new head is told first what the OST has missed
// (fences), then that it is the head, and then counts as up when the owner has admitted it: telling the same
// fences once more, which it hands on to the members behind it, and what else belongs to that. No step waits
// for longer than a heartbeat for a member that does not answer, but the owner's.
//
// Thread-safe. The owner is called without locks and outlives the keeper; the tasks keep alive what
// ChainOwner::Hold gives them, which must be what keeps the owner alive.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/status.h"
#include "common/task.h"
#include "rpc/object_stub.h"
#include "server/cluster/chain_owner.h"
#include "server/cluster/ended_processes.h"
#include "server/cluster/ost_chain.h"
#include "server/kv/kv_store.h"
#include "transport/transport.h"

namespace nacre::cluster {

class ChainKeeper {
 public:
  // `epoch`: MetadataOptions. `ended`: in which an end is noted before Ended is called.
  ChainKeeper(KvStore& store, Clock& clock, Duration heartbeat, uint64_t epoch, const EndedProcesses& ended,
              ChainOwner& owner)
      : store_(store), clock_(clock), heartbeat_(heartbeat), epoch_(epoch), ended_(ended), owner_(owner) {}

  // An OST that is known; once for each.
  void Load(OstIndex index, OstRecord record);
  // Ends all tasks and calls.
  void Close();

  bool Has(OstIndex index) const;
  // Says what Enter would answer, and changes nothing.
  Status Check(const Arrival& arrival) const;
  // Stores that the member is there. Start goes on with it; its registration is answered when AwaitEntry has
  // returned.
  Task<Status> Enter(Arrival arrival);
  Status Start(OstIndex index, const Executor& executor);
  Task<Status> AwaitEntry(OstIndex index, std::string uuid);
  bool Beat(const Arrival& arrival);  // false: it has to register again
  void Ended(uint64_t instance);      // an OSS process, whose members are down
  Task<StatusOr<proto::Chain>> Report(proto::ReportChainRequest request);
  // Stores what the OST is used for from now on. One that is gone by that is not known here any more, and its
  // task ends.
  Task<Status> SetUse(OstIndex index, OstUse use);

  bool IsUp(OstIndex index) const;
  OstRecord Record(OstIndex index) const;  // without members: there is no such OST
  std::string HeadOf(OstIndex index) const;
  uint64_t InstanceOf(OstIndex index) const;  // of the head
  proto::OstInfo Info(OstIndex index) const;
  void NoteSpace(OstIndex index, uint64_t instance, const proto::StatfsOstReply& space);
  void Fill(OstIndex index, proto::OstState* state) const;
  // Of an OST that is not up: when its members' leases are over.
  Duration ServesUntil(OstIndex index) const;
  // The head could not be told something: unless another one is head by now, it is down.
  void MarkHeadDown(OstIndex index, const std::string& uuid, std::string_view why);

 private:
  struct Group {  // one OST
    Group(OstIndex index, OstChain chain) : index(index), chain(std::move(chain)) {}
    const OstIndex index;
    OstChain chain;
    AsyncMutex changing;  // held from a decision until it is stored and in force
    bool running = false;
    bool gone = false;                   // the OST has been removed
    OneShot<Unit> wake;                  // of the background task
    std::vector<OneShot<Unit>> waiters;  // until something changes
  };
  using GroupPtr = std::shared_ptr<Group>;
  using Hearer = OstChain::Hearer;

  GroupPtr Find(OstIndex index) const;
  GroupPtr FindOrMake(OstIndex index);
  bool IsOver(const Group& group) const;  // closed, or the OST has been removed
  void Wake(Group* group) const;          // with mutex_ held
  static void WakeWaiters(Group* group);
  StatusOr<std::shared_ptr<ObjectStub>> StubTo(const std::string& address);

  Task<void> Keep(GroupPtr group, std::shared_ptr<void> hold);
  Task<void> Pause(GroupPtr group, OneShot<Unit> wake, bool retry);
  Task<Status> Put(const GroupPtr& group, OstRecord record);  // with changing held: stores and adopts
  Task<Status> MakeDueChanges(GroupPtr group);
  Task<Status> ChangeAll(const GroupPtr& group);  // with changing held
  // True: all that are there know.
  Task<bool> TellBehind(GroupPtr group);
  Task<bool> TellHead(GroupPtr group);
  Task<bool> Admit(GroupPtr group, Hearer head);
  Task<bool> Tell(GroupPtr group, Hearer hearer);
  Task<Status> TellFences(OstIndex index, Hearer head);
  Task<Status> Call(const std::string& address, proto::ObjectRequest request);
  void NoteNotTold(const GroupPtr& group, const Hearer& hearer, const Status& why);

  KvStore& store_;
  Clock& clock_;
  const Duration heartbeat_;
  const uint64_t epoch_;
  const EndedProcesses& ended_;
  ChainOwner& owner_;
  mutable std::mutex mutex_;
  bool closed_ = false;
  std::map<OstIndex, GroupPtr> groups_;
  std::map<std::string, std::shared_ptr<ObjectStub>> stubs_;  // by address
};

}  // namespace nacre::cluster
