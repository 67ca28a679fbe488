// Typed calls to one server, or to one OST wherever it is, for one session: encodes ObjectRequests, numbers
// mutations per OST, repeats them after a lost connection until they are answered (the OSS does each once,
// see proto/object.proto), and turns replies into Status. Used by the client and by the MDS. Thread-safe;
// must outlive its calls.
//
// Sequences of a client's session begin at 1 and are the session's: its stubs share them, for an OST may come
// to be reached by another stub, and what it has stored of the session goes with it. The MDS is session 0 for
// ever, so each of its processes begins above all that an earlier one has used. Where there are several MDSes
// it says in which epoch it is the primary; one whose epoch is over is refused, and takes it as if the server
// were away, for it will be ended soon.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "common/cancellation.h"
#include "common/clock.h"
#include "common/ids.h"
#include "common/status.h"
#include "common/task.h"
#include "proto/object.pb.h"
#include "transport/block_sums.h"
#include "transport/transport.h"

namespace nacre {

struct RetryPolicy {
  bool hard = true;                                  // wait for ever for a server that is away
  Duration soft_timeout = std::chrono::seconds(60);  // else fail with EIO after so long
  Duration call_timeout = std::chrono::seconds(30);  // one attempt
  Duration pause = std::chrono::milliseconds(50);    // before the first repeat; doubles up to max_pause
  Duration max_pause = std::chrono::seconds(1);
};

// The numbers of a session's mutations, for each OST. Thread-safe.
class ObjectSequences {
 public:
  explicit ObjectSequences(uint64_t first) : first_(first) {}

  uint64_t Begin(OstIndex ost);  // a new one, unanswered
  void End(OstIndex ost, uint64_t sequence);
  uint64_t LowWater(OstIndex ost) const;  // of an OST that has had one

 private:
  struct Sequencer {  // of one OST
    uint64_t next;
    std::set<uint64_t> unanswered;
  };

  const uint64_t first_;
  mutable std::mutex mutex_;
  std::map<OstIndex, Sequencer> sequencers_;
};

class ObjectStub {
 public:
  // `mdt_epoch`: of session 0; ObjectRequest.
  ObjectStub(std::shared_ptr<Peer> peer, Clock& clock, SessionId session, uint64_t first_sequence,
             RetryPolicy policy, uint64_t mdt_epoch = 0)
      : ObjectStub(std::move(peer), clock, session, std::make_shared<ObjectSequences>(first_sequence), policy,
                   mdt_epoch) {}
  ObjectStub(std::shared_ptr<Peer> peer, Clock& clock, SessionId session,
             std::shared_ptr<ObjectSequences> sequences, RetryPolicy policy, uint64_t mdt_epoch = 0);

  // The server moved, or another one has the OST now (a new cluster map): later attempts go there. Those
  // under way are given up, for the old one may never answer, and are repeated there at once; so are those
  // that pause.
  void SetPeer(std::shared_ptr<Peer> peer);
  std::shared_ptr<Peer> peer() const;

  // Closes the peer, also for other stubs that use it; every call, also one that would wait for ever, ends
  // with ESHUTDOWN.
  void Close();

  // Every call, also one that would wait for ever, ends with this error from now on. The peer is left to
  // other stubs that use it.
  void End(Status why);

  // Sends the request (ost, op and fields filled in by the caller; session, sequence and low_water by the
  // stub) with the call's memory. Non-OK: the reply's own status, or the retry policy has given up (EIO; a
  // mutation may then have been carried out or not, but it will not be any more once a later mutation has
  // reached the server). A cancelled one is not repeated; an attempt under way ends by itself, at the
  // cancellation's deadline at the latest.
  Task<StatusOr<proto::ObjectReply>> Call(proto::ObjectRequest request, CallMemory kind,
                                          std::vector<MemorySpan> memory,
                                          CancellationPtr cancellation = nullptr,
                                          BlockSumsPtr sums = nullptr);
  // One attempt of a request that changes nothing, whatever the retry policy says.
  Task<StatusOr<proto::ObjectReply>> CallOnce(proto::ObjectRequest request, CallMemory kind,
                                              std::vector<MemorySpan> memory, Duration timeout,
                                              BlockSumsPtr sums = nullptr);

 private:
  // Where attempts go, and what ends them, and the pauses between them, when that is over.
  struct Way {
    void End(Status why) const;

    std::shared_ptr<Peer> peer;
    GiveUpFlag replaced = std::make_shared<std::atomic<bool>>(false);
    CancellationPtr over = std::make_shared<Cancellation>();
  };

  Task<StatusOr<proto::ObjectReply>> Repeat(proto::ObjectRequest request, CallMemory kind,
                                            std::vector<MemorySpan> memory, CancellationPtr cancellation,
                                            BlockSumsPtr sums);
  Task<StatusOr<proto::ObjectReply>> Attempt(Way way, const proto::ObjectRequest& request, CallMemory kind,
                                             std::vector<MemorySpan> memory, Duration timeout,
                                             BlockSumsPtr sums);
  Way way() const;
  bool closed() const;
  Status ended() const;

  Clock& clock_;
  const SessionId session_;
  const RetryPolicy policy_;
  const uint64_t mdt_epoch_;
  mutable std::mutex mutex_;
  Way way_;
  bool closed_ = false;
  Status ended_;
  const std::shared_ptr<ObjectSequences> sequences_;
};

}  // namespace nacre
