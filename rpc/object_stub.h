// Typed calls to one OSS for one session: encodes ObjectRequests, numbers mutations per OST, repeats them
// after a lost connection until they are answered (the OSS does each once, see proto/object.proto), and turns
// replies into Status. Used by the client and by the MDS. Thread-safe.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "common/clock.h"
#include "common/ids.h"
#include "common/status.h"
#include "common/task.h"
#include "proto/object.pb.h"
#include "transport/transport.h"

namespace nacre {

struct RetryPolicy {
  bool hard = true;                                  // wait for ever for a server that is away
  Duration soft_timeout = std::chrono::seconds(60);  // else fail with EIO after so long
  Duration call_timeout = std::chrono::seconds(30);  // one attempt
  Duration pause = std::chrono::milliseconds(50);    // before the first repeat; doubles up to max_pause
  Duration max_pause = std::chrono::seconds(1);
};

class ObjectStub {
 public:
  ObjectStub(std::shared_ptr<Peer> peer, Clock& clock, SessionId session, RetryPolicy policy);

  // The server moved (a new cluster map): later attempts go there.
  void SetPeer(std::shared_ptr<Peer> peer);
  std::shared_ptr<Peer> peer() const;

  // Sends the request (ost, op and fields filled in by the caller; session, sequence and low_water by the
  // stub) with the call's memory. Non-OK: the reply's own status, or the retry policy has given up.
  Task<StatusOr<proto::ObjectReply>> Call(proto::ObjectRequest request, CallMemory kind,
                                          std::vector<MemorySpan> memory);

 private:
  struct Sequencer {  // of one OST
    uint64_t next = 1;
    std::set<uint64_t> unanswered;
  };

  uint64_t Begin(OstIndex ost, uint64_t* low_water);
  uint64_t LowWater(OstIndex ost);
  void End(OstIndex ost, uint64_t sequence);

  Clock& clock_;
  const SessionId session_;
  const RetryPolicy policy_;
  mutable std::mutex mutex_;
  std::shared_ptr<Peer> peer_;
  std::map<OstIndex, Sequencer> sequencers_;
};

bool IsMutation(const proto::ObjectRequest& request);

}  // namespace nacre
