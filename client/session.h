// This client's session with the MDS: opens it, keeps it alive, takes it up again after a lost stream or a
// restart of the MDS, and repeats what was unanswered under its old sequences (DESIGN §5).
//
// Lives in a shared_ptr; its own tasks run on the executor given. Thread-safe. Hooks are called outside of
// all locks, from the session's tasks or from the channel. Calls fail with the reply's own error; EIO when
// the soft policy gave up or the session was evicted while they were under way; ESHUTDOWN after End.
#pragma once

#include <absl/functional/any_invocable.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/ids.h"
#include "common/random.h"
#include "common/status.h"
#include "common/task.h"
#include "proto/metadata.pb.h"
#include "rpc/metadata_channel.h"
#include "rpc/object_stub.h"
#include "rpc/versions.h"

namespace nacre::client {

// Asks the MDS, under the session of this epoch, behind everything that was answered early.
using AskMds = std::function<Task<StatusOr<proto::MetadataReply>>(uint64_t epoch, proto::MetadataRequest)>;

class Session : public std::enable_shared_from_this<Session> {
 public:
  struct Hooks {
    std::function<void(proto::Push)> push;              // revocations, grants, maps
    std::function<std::vector<proto::Reclaim>()> held;  // what this client holds, in messages of any number
    // `fresh`: a new session, in this epoch. Called before calls go on; may be called again for the same
    // session and epoch if the stream was lost before they did.
    std::function<void(const proto::ConnectReply&, bool fresh, uint64_t epoch)> connected;
    // Everything held in earlier epochs is gone; a new session follows, in this one.
    std::function<void(uint64_t epoch)> evicted;
    std::function<void(proto::KeepAlive*)> report;  // fills in what nacre status shows
    std::function<void(const proto::KeepAliveReply&)> kept_alive;
    std::function<void()> leases_confirmed;  // leases_end() has moved
  };

  Session(Executor executor, Clock& clock, Random& random, std::shared_ptr<MetadataConnector> connector,
          RetryPolicy policy, std::string name, bool replaces, Hooks hooks);

  // The first connection. UNAVAILABLE, saying what to check, if the MDS cannot be reached within `patience`.
  Task<StatusOr<proto::ConnectReply>> Start(Duration patience);

  // Calls name the epoch under which their reason was found: EIO, and nothing is sent, once the session of
  // that epoch has ended.
  //
  // Sends and repeats until there is an answer.
  Task<StatusOr<proto::MetadataReply>> Call(uint64_t epoch, proto::MetadataRequest request);
  // Gives a mutation its number in the session of this epoch, as one that is unanswered from now on; nothing
  // if that session has ended.
  void Number(uint64_t epoch, proto::MetadataRequest* mutation);
  // As Call, for what Number has been called for, alone or in a batch. A batch that follows another one
  // (Batch.after) may be called for before that is answered: its mutations are done later.
  Task<StatusOr<proto::MetadataReply>> CallNumbered(uint64_t epoch, proto::MetadataRequest request);
  // Sends once: UNAVAILABLE if the stream was lost meanwhile, or if `still`, asked when there is a stream to
  // send it over, says that it is out of date.
  Task<StatusOr<proto::MetadataReply>> CallOnce(uint64_t epoch, proto::MetadataRequest request,
                                                std::function<bool()> still = nullptr);

  // Whether there is a stream to the MDS.
  bool connected() const;
  // Waits for one, or until the task's chain is cancelled (common/cancellation.h). Calls of what has no
  // number give up in the same way while there is none; a mutation once begun does not.
  Task<Status> WaitForStream();

  // Says goodbye (`clean`: with Disconnect, if there is a stream and for some seconds: the MDS notices by
  // itself otherwise) and stops.
  Task<void> End(bool clean);

  // The MDS speaks another version, and this client has no session any more: with this, calls end. OK: it is
  // waited for.
  Status refusal() const {
    std::lock_guard lock(mutex_);
    return refusal_;
  }

  SessionId id() const;
  // Rises with each eviction: what was got under an older one is gone.
  uint64_t epoch() const { return epoch_; }
  // Clock::Now until which this client may rely on what it holds (leases, opens, locks): so long after it has
  // sent what the MDS has answered last as the MDS has said it would keep it for us (common/lease_time.h).
  // Zero: nothing is held.
  Duration leases_end() const { return Duration(leases_end_.load()); }
  // Whether objects that were a file's at that time have its bytes still, wherever the file is by now: what a
  // file has left by a move stays for as long as a lease is good (server/metadata/left_objects.h). Later it
  // may have been destroyed, and made anew by a write that came as late.
  bool ObjectsKeptSince(Duration begin) const;
  // Whether the server that is there now keeps batches in the order in which they say that they follow each
  // other.
  bool OrdersBatches() const;
  // Rises with each mutation that is begun.
  uint64_t mutations() const;
  // Every mutation with a lower number has been answered.
  uint64_t answered() const;

 private:
  enum class State { kConnecting, kConnected, kEnded };

  struct Turn {  // what a call needs to be sent
    std::shared_ptr<MetadataChannel> channel;
    uint64_t connection = 0;
    SessionId session = 0;
    bool orders_batches = false;
  };

  Task<StatusOr<Turn>> WaitConnected(uint64_t epoch, Duration begin, bool may_give_up);
  Status Check(uint64_t epoch) const;                    // mutex held
  uint64_t LowWater() const;                             // mutex held
  void Acknowledge(proto::MetadataRequest* request);     // says what has been answered; mutex held
  void Answered(const proto::MetadataRequest& request);  // mutex held
  std::optional<OneShot<Unit>> SetAfter(const Turn& turn, proto::MetadataRequest* request);  // mutex held
  bool OrdersBatchesLocked() const { return version_ >= kOrderedBatches; }
  void Lost(uint64_t connection, Status why);
  void Push(uint64_t connection, proto::Push push);
  void Evict(std::string reason);
  // Notes that a keep-alive sent at this moment was answered. With the mutex held, as the next.
  void ConfirmLocked(Duration sent);
  void ArmKeepAliveLocked(Duration sent);
  Task<void> SayGoodbye();
  Task<void> Reconnect(uint64_t connection);
  // Of a connection that was not made. A server that speaks another version is waited for while the session
  // lasts, since the former one may come back; then the session has ended.
  void NoteRefusal(const Status& why);
  // `at_once`: how long the answer may take if the session is not new, and there are other servers to ask.
  Task<StatusOr<proto::ConnectReply>> ConnectOnce(uint64_t connection, Duration at_once);
  Task<StatusOr<proto::MetadataReply>> AskWhileConnecting(std::shared_ptr<MetadataChannel> channel,
                                                          proto::MetadataRequest request, Duration patience);
  bool has_others() const { return connector_->servers() > 1; }
  // Ends the stream, if it is still that of this connection, and connects again: the server holds it but does
  // not answer, or has ended the session that it carried.
  void GiveUp(uint64_t connection, Status why);
  std::unique_ptr<TimerHandle> GiveUpWithoutAnswer();  // the connection that is there now, in a while
  Status CheckConnecting(uint64_t connection, uint64_t epoch) const;
  Status CheckConnectingLocked(uint64_t connection, uint64_t epoch) const;  // mutex held
  Task<Status> SendReclaim(std::shared_ptr<MetadataChannel> channel);
  Task<void> KeepAlive();
  void Wake();

  const Executor executor_;
  Clock& clock_;
  const std::shared_ptr<MetadataConnector> connector_;
  const RetryPolicy policy_;
  const std::string name_;
  const bool replaces_;  // proto::Connect
  Hooks hooks_;

  mutable std::mutex mutex_;
  Random& random_;
  State state_ = State::kConnecting;
  SessionId id_ = 0;
  uint64_t nonce_ = 0;
  std::atomic<uint64_t> epoch_{1};  // changed with the mutex held
  Duration lease_{0};               // ConnectReply.lease_ms
  uint32_t version_ = 0;            // ConnectReply.version
  std::atomic<Duration::rep> leases_end_{0};
  uint64_t connection_ = 0;  // number of the connection that is up or being made
  bool lost_ = false;        // that connection is lost already
  Status refusal_;
  std::string cluster_uuid_;
  Duration keep_alive_ = std::chrono::seconds(10);
  std::shared_ptr<MetadataChannel> channel_;
  uint64_t next_sequence_ = 1;
  std::set<uint64_t> unanswered_;
  uint64_t acknowledged_ = 0;  // answered_below as it was last told
  std::vector<OneShot<Unit>> waiters_;
  std::unique_ptr<TimerHandle> keep_alive_timer_;
};

}  // namespace nacre::client
