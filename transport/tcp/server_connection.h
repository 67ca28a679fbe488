// The server's end of one connection: starts a handler for each call, receives what they get straight into
// their buffers. A client that is waited for and moves no byte for TcpOptions::transfer_timeout loses the
// connection, so that nothing which a handler holds depends on a client that is frozen. Thread-safe.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <array>
#include <functional>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>

#include "common/clock.h"
#include "transport/tcp/connection.h"
#include "transport/tcp/tcp_transport.h"
#include "transport/watchdog.h"

namespace nacre {

// Where calls go, shared by the connections of a listener. After Close no handler is started any more.
class CallSink {
 public:
  CallSink(Executor executor, CallHandler handler)
      : executor_(std::move(executor)), handler_(std::move(handler)) {}

  void Start(std::shared_ptr<IncomingCall> call);
  void Close();

 private:
  const Executor executor_;
  std::shared_mutex mutex_;  // shared while a handler's task is being made
  bool closed_ = false;
  CallHandler handler_;
};

class ServerConnection : public Connection {
 public:
  // `name`: where it comes from. `lost` is called once when the connection has ended.
  ServerConnection(StreamSocket socket, std::string name, std::shared_ptr<CallSink> sink, Clock& clock,
                   const TcpOptions& options, absl::AnyInvocable<void()> lost,
                   StreamCounters& counters = StreamCounters::Tcp());

  // Starts reading; ends the connection if no greeting comes.
  void Serve();

 protected:
  // A transfer that a handler waits for, in its own frame.
  struct PendingTransfer {
    uint64_t offset = 0;
    uint32_t length = 0;
    std::span<iovec> pieces;
    OneShot<Status> done;
  };

  Task<Status> OnFrame(FrameHeader header) override;
  void OnClosed(const Status& why) override;
  Task<Status> OnCall(FrameHeader header);
  virtual StatusOr<std::shared_ptr<IncomingCall>> NewCall(const FrameHeader& header, std::string body,
                                                          std::unique_ptr<std::byte[]> eager);

  // A transfer is there until EndTransfer, or until the connection has ended.
  Status AddTransfer(uint64_t id, PendingTransfer* transfer);
  StatusOr<PendingTransfer*> FindTransfer(const FrameHeader& header);  // for the reader
  void EndTransfer(uint64_t id, PendingTransfer* transfer);

  Clock& clock() { return clock_; }
  size_t calls_at_once() const { return calls_at_once_; }

 private:
  friend class TcpIncomingCall;
  friend class ReplyWrite;
  friend class PutWrite;

  Task<Status> OnHello(FrameHeader header);
  Task<Status> OnData(FrameHeader header);
  Task<Status> OnAttach(FrameHeader header);
  void Keep(std::shared_ptr<Attachment> attachment);

  Status AddCall(uint64_t id);
  void RemoveCall(uint64_t id);
  Task<Status> Send(AwaitedWrite& write);
  void CountUnsentReply(int change);

  // The side that a handler waits for: the client sends what it was asked for, or takes what it is sent.
  enum Direction { kFromClient, kToClient };
  struct Waiting {
    int64_t count = 0;   // for a moment it may be below what is true
    uint64_t bytes = 0;  // moved by `since`, when some were seen to move or the first began to wait
    Duration since{0};
  };
  void CountWaiting(Direction direction, int change);
  uint64_t Moved(Direction direction);
  Duration Expire(Duration now);

  std::string name_;  // with the client's identity after the greeting; only for the reader
  const std::shared_ptr<CallSink> sink_;
  Clock& clock_;
  const size_t calls_at_once_;
  const Duration transfer_timeout_;
  const std::string identity_;
  const std::function<std::vector<PathOffer>()> offers_;
  const AttachHandler attach_;
  bool greeted_ = false, attached_ = false;  // only for the reader
  std::mutex mutex_;
  std::unique_ptr<TimerHandle> greeting_timer_;
  absl::AnyInvocable<void()> lost_;
  bool closed_ = false;
  std::shared_ptr<Attachment> attachment_;
  // The calls in progress, each with what its handler waits for.
  absl::flat_hash_map<uint64_t, PendingTransfer*> calls_;
  std::shared_ptr<Watchdog> stalled_;  // from Serve on
  std::array<Waiting, 2> waiting_;     // by Direction
  int64_t unsent_replies_ = 0;         // that wait for the socket; for a moment it may be below what is true
};

// Makes the server's end of a connection that was accepted.
using ServerConnectionMaker = std::function<std::shared_ptr<ServerConnection>(
    StreamSocket, std::string name, std::shared_ptr<CallSink>, Clock&, const TcpOptions&,
    absl::AnyInvocable<void()> lost)>;

}  // namespace nacre
