// The OSTs as the cluster map names them, a stub for each that goes where the map says, and the space that is
// reserved on each OST for write-behind (Lustre's grants): a write is accepted into the cache only if the
// space that it will take is granted, so it cannot fail later. A grant lasts as a lease does (kGrantLease):
// an OST that has not heard of this session for longer gives the space to others. Data that waits for an OST
// that is cut off for that long may find no space.
//
// Thread-safe. A session's end means new stubs (Reset): their sequences begin anew. Calls name the epoch of
// the session (Session::epoch) under which their reason was found, and fail with EIO in any other: what was
// begun or acknowledged under a session that has ended is never sent under the next one.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "client/member_choice.h"
#include "common/clock.h"
#include "common/ids.h"
#include "common/status.h"
#include "common/task.h"
#include "proto/cluster.pb.h"
#include "rpc/object_stub.h"
#include "transport/transport.h"

namespace nacre::client {

// Of reads from members of an OST that are not its head.
struct MemberReads {
  uint64_t from = 64 << 10;  // bytes; smaller reads go to the head, which has to be asked for versions anyway
  bool plant_unwitnessed = false;  // Options
};

class Targets {
 public:
  // `on_loss`: told, from within a call, when an OST has lost what was not synced; also when the map says
  // that its OSS has been started again, and the call that follows from that finds it out.
  using OnLoss = std::function<void(OstIndex ost, uint64_t losses)>;
  Targets(Transport& transport, Clock& clock, RetryPolicy policy, OnLoss on_loss, MemberReads reads = {});

  // The session of this epoch from now on; 0: there is none yet. Closes the stubs of the old one; grants are
  // gone with it. An epoch that is not newer than the last one changes nothing.
  void Reset(SessionId session, uint64_t epoch);
  // Returns the OSTs whose OSS has been started again since it last answered: worth a call. A map that a
  // newer one of the same MDS has overtaken changes nothing.
  std::vector<OstIndex> SetMap(const proto::ClusterMap& map);
  // Every call ends with ESHUTDOWN.
  void Close();

  // Sends to the OSS that has the OST now, and to another one as soon as the map says that it is there. EIO
  // if the map has no such OST (soft: after the timeout; hard: waits for a map that has). If it says that the
  // OST has been removed: at once, also where the call is under way, ESTALE, for then no layout names it any
  // more; EIO if it was lost.
  Task<StatusOr<proto::ObjectReply>> Call(uint64_t epoch, proto::ObjectRequest request, CallMemory kind,
                                          std::vector<MemorySpan> memory,
                                          CancellationPtr cancellation = nullptr,
                                          BlockSumsPtr sums = nullptr);

  // A read, of any member of the OST that is in sync: if that one does not answer in time, or not what the
  // head would have answered meanwhile, then of the head. Otherwise as Call.
  Task<StatusOr<proto::ObjectReply>> Read(uint64_t epoch, proto::ObjectRequest request,
                                          std::vector<MemorySpan> memory,
                                          CancellationPtr cancellation = nullptr,
                                          BlockSumsPtr sums = nullptr);

  // Sets `bytes` of granted space aside, asking the OST for more if need be, and for `ahead` beyond that, so
  // that few writes have to ask. False: the OST has none to give, write through.
  Task<bool> Reserve(uint64_t epoch, OstIndex ost, uint64_t bytes, uint64_t ahead);
  // The same on every OST that there is, of what has been granted already, and without waiting: `reserved`
  // has what is set aside on each. False: nothing is, since one of them has granted less.
  bool TryReserveOnEach(uint64_t bytes, std::map<OstIndex, uint64_t>* reserved);
  // Gives back what Reserve set aside and was not used.
  void Unreserve(OstIndex ost, uint64_t bytes);
  // A write that the OST has answered has used up so much of what was set aside.
  void Used(OstIndex ost, uint64_t bytes);
  // Gives grants that are not in use back to the OSTs: best effort, for a moment, for they go with the
  // session anyway.
  Task<void> ReturnGrants(uint64_t epoch);

  // Whether it has been removed, and what had been written there is elsewhere by now, durably.
  bool LeftWhole(OstIndex ost) const;
  // Whether it has been removed with what had been written there.
  bool IsLost(OstIndex ost) const;

  // How often the OST has lost power, as it last said; nothing: it has not said yet.
  std::optional<uint64_t> Losses(OstIndex ost) const;

  // Host memory for Call, which must outlive the region.
  StatusOr<std::shared_ptr<MemoryRegion>> Register(std::byte* data, size_t size) {
    return transport_.Register(data, size);
  }

  // How bytes of this memory went to or from the OSS that has the OST (Peer::PathFor); empty: not spoken to
  // yet.
  std::string PathTo(OstIndex ost, const MemoryRegion& memory) const;
  // To each OSS: "address path (reason)".
  std::vector<std::string> Paths() const;
  // Counts of the calls over each way to each OSS.
  std::vector<proto::PathState> PathStates() const;

 private:
  struct ReadTurn;  // targets_read.cc
  using Reply = StatusOr<proto::ObjectReply>;

  struct Target {
    std::string address;
    MemberChoice choice;
    std::map<std::string, std::shared_ptr<ObjectStub>> members;  // not the head; as far as they were asked
    std::shared_ptr<ObjectStub> stub;                            // null: not spoken to yet in this session
    uint64_t instance = 0;  // of the OSS that gave the grant; another one has forgotten it
    uint64_t losses = 0;    // as it last said
    uint64_t granted = 0;
    uint64_t reserved = 0;  // of these
    int asking_now = 0;     // who asks for more or gives back, or waits for the turn to (`asking`)
    std::shared_ptr<AsyncMutex> asking = std::make_shared<AsyncMutex>();
    Duration heard{0};  // when the newest of what it has answered was sent
  };

  StatusOr<std::shared_ptr<Peer>> PeerOf(const std::string& address);  // under mutex_
  std::vector<std::shared_ptr<ObjectStub>> TakeStubs();                // likewise: there are none any more
  void DropUnusedPeers();                                              // likewise
  void SetMembers(const proto::OstState& ost, Target* target);         // likewise
  std::shared_ptr<ObjectStub> BeginRead(uint64_t epoch, ReadTurn* turn);
  void EndRead(const ReadTurn& turn);
  Task<StatusOr<std::optional<proto::ObjectReply>>> ReadAtMember(
      uint64_t epoch, std::shared_ptr<ObjectStub> member, const proto::ObjectRequest& request,
      std::vector<MemorySpan> memory, CancellationPtr cancellation, BlockSumsPtr sums, ReadTurn* turn);
  StatusOr<std::shared_ptr<ObjectStub>> StubOf(OstIndex ost, uint64_t epoch);
  bool TryReserve(OstIndex ost, uint64_t bytes, uint64_t* want);
  Task<Status> Ask(uint64_t epoch, OstIndex ost, uint64_t want, CancellationPtr cancellation);
  std::shared_ptr<AsyncMutex> BeginAsking(OstIndex ost);
  Task<bool> AskAndReserve(uint64_t epoch, OstIndex ost, uint64_t bytes, uint64_t ahead,
                           std::shared_ptr<AsyncMutex> asking);
  Task<Unit> ReturnGrant(uint64_t epoch, OstIndex ost, CancellationPtr cancellation);
  bool Current(uint64_t epoch) const;
  void NoteAnswer(OstIndex ost, const proto::ObjectReply& reply, Duration sent);

  Transport& transport_;
  Clock& clock_;
  const RetryPolicy policy_;
  const OnLoss on_loss_;
  const MemberReads reads_;
  mutable std::mutex mutex_;
  SessionId session_ = 0;  // 0: none just now
  uint64_t epoch_ = 0;     // of that session, or of the one to come
  bool closed_ = false;
  std::shared_ptr<ObjectSequences> sequences_;          // of that session
  std::map<std::string, std::shared_ptr<Peer>> peers_;  // by address; of the stubs
  std::map<OstIndex, Target> targets_;
  std::map<OstIndex, bool> removed_;  // whether it was lost
  uint64_t map_instance_ = 0;         // of the newest map
  uint64_t map_version_ = 0;
};

}  // namespace nacre::client
