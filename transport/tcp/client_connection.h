// The client's end of one connection: sends calls, receives puts straight into their memory (a device's by
// way of its staging buffers), answers gets from it. Thread-safe. Calls beyond the server's limit wait here
// in order.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "common/clock.h"
#include "transport/block_sums.h"
#include "transport/call_result.h"
#include "transport/memory.h"
#include "transport/tcp/connection.h"
#include "transport/tcp/hello.h"
#include "transport/watchdog.h"

namespace nacre {

class ClientConnection;

// One call under way. The memory may be touched until `result` is set.
class ClientCall : public WriteOp, public std::enable_shared_from_this<ClientCall> {
 public:
  ClientCall(CallRequest request, Duration deadline)
      : deadline(deadline),
        body(std::move(request.body)),
        kind(request.kind),
        memory(std::move(request.memory)),
        sums(std::move(request.sums)),
        given_up_(std::move(request.given_up)) {}

  const Duration deadline;
  const std::string body;
  const CallMemory kind;
  const FlatMemory memory;
  const BlockSumsPtr sums;
  CallResult result;

  const GiveUpFlag& given_up() const { return given_up_; }
  bool HasExpired(Duration now) const { return deadline <= now || IsGivenUp(given_up_); }

 private:
  friend class ClientConnection;
  friend class DataWrite;
  void Done(const Status& status) override;

  const GiveUpFlag given_up_;
  ClientConnection* connection_ = nullptr;  // alive while the write is under way
  uint64_t id_ = 0;
  std::string shown_;  // see ShowSource
  StatusOr<std::string> reply_ = std::string();
  // The reply and each write under way: the call is over when there is none left.
  std::atomic<int> holds_ = 0;
  std::atomic<int> data_writes_ = 0;
  bool timed_out_ = false;  // these two under the connection's mutex
  bool replied_ = false;
};

class ClientConnection : public Connection {
 public:
  ClientConnection(StreamSocket socket, std::string address, Clock& clock,
                   StreamCounters& counters = StreamCounters::Tcp());

  // After Start: agrees on the version with the server.
  Task<Status> Greet(std::string identity, Duration timeout);

  // The server's hello; after Greet has returned OK.
  const Hello& server() const { return server_; }

  // After Greet, once: hands the server's AttachHandler a request. `closed` is called once, when the
  // connection has ended, also if this fails.
  Task<StatusOr<std::string>> Attach(std::string request, Duration timeout,
                                     absl::AnyInvocable<void(const Status&)> closed);

  // False: the connection is ending and nothing was done. Otherwise the call's result will be set.
  bool Begin(const std::shared_ptr<ClientCall>& call);
  // Peer::EndGivenUp.
  void EndGivenUp() { watchdog_->Arm(kNow); }

 protected:
  Task<Status> OnFrame(FrameHeader header) override;
  void OnClosed(const Status& why) override;

  // Says to the server where it can see the call's memory by itself; false: it cannot.
  virtual bool ShowSource(const ClientCall&, std::string*) { return false; }

  // The call that the frame is about, which must have such memory there.
  StatusOr<std::shared_ptr<ClientCall>> Find(const FrameHeader& header, CallMemory kind);

  // For the reader: the call is not over before it is dropped as often as it was held. One whose reply has
  // been read cannot be held any more.
  bool Hold(const std::shared_ptr<ClientCall>& call);
  void Drop(const std::shared_ptr<ClientCall>& call);

 private:
  friend class ClientCall;
  friend class DataWrite;
  struct Slot {
    std::shared_ptr<ClientCall> call;
    uint64_t generation = 0;
  };

  Task<Status> OnHello(FrameHeader header);
  Task<Status> OnPut(FrameHeader header);
  Task<Status> PutToDevice(FrameHeader header, std::shared_ptr<ClientCall> call);
  Task<Status> OnGet(FrameHeader header);
  Task<Status> OnReply(FrameHeader header);
  Task<Status> OnAttach(FrameHeader header);

  void Assign(const std::shared_ptr<ClientCall>& call);  // under mutex_
  void Send(const std::shared_ptr<ClientCall>& call);
  Duration Expire(Duration now);

  const std::string address_;
  Clock& clock_;
  const OneShot<Status> greeted_;
  Hello server_;
  const OneShot<StatusOr<std::string>> attached_;
  std::shared_ptr<Watchdog> watchdog_;
  std::mutex mutex_;
  bool open_ = false;  // between the hello and the end
  Status ended_;       // not OK from the end on
  absl::AnyInvocable<void(const Status&)> attachment_closed_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_slots_;
  std::deque<std::shared_ptr<ClientCall>> waiting_;  // for a slot
};

}  // namespace nacre
