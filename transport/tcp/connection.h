// One connection of the data plane, whichever side made it: reads frames in one coroutine, writes through a
// WriteQueue, and ends in an order that lets nobody's memory be touched afterwards:
//   Shutdown (from anywhere) -> the socket is shut down -> the reader stops and the writer is idle ->
//   OnClosed, once.
// Only OnClosed tells callers that their calls have failed.
//
// Thread-safe. Held in a shared_ptr; the reading coroutine and pending writes keep it alive until OnClosed.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "common/status.h"
#include "common/task.h"
#include "transport/tcp/address.h"
#include "transport/tcp/frame.h"
#include "transport/tcp/stream_counters.h"
#include "transport/tcp/stream_reader.h"
#include "transport/tcp/write_queue.h"

namespace nacre {

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  virtual ~Connection() = default;
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void Start();

  // Ends the connection; `why` is what OnClosed is told if nobody was earlier.
  void Shutdown(const Status& why);
  bool closing() const { return stopped_.load(std::memory_order_acquire); }

  // Whether, by now, this side has closed the connection or the other side has hung up.
  bool HasHungUp() const;

 protected:
  Connection(StreamSocket socket, FrameReceiver receiver, StreamCounters& counters);

  // Exchanges what comes before the first frame. An error ends the connection.
  virtual Task<Status> Prepare() { co_return OkStatus(); }

  // One frame: its header has been read and checked, its body and payload have not been read yet. An error
  // ends the connection; INVALID_ARGUMENT says that the other side broke the rules.
  virtual Task<Status> OnFrame(FrameHeader header) = 0;

  // Called by the reader when it has done everything that has come so far. An error ends the connection.
  virtual Status BeforeWait() { return OkStatus(); }

  // The answer to a frame that this kind of connection does not have.
  Task<Status> Refuse(FrameHeader header);

  // The reader and the writer have stopped for good.
  virtual void OnClosed(const Status& why) = 0;

  Task<StatusOr<std::string>> ReadBody(uint32_t length);

  // Sends a frame with nobody waiting for it.
  void SendFrame(const FrameHeader& header, std::string body);
  // Likewise, of frames that are there already. `held` is let go when the socket has taken them, or never
  // will.
  void SendBytes(std::string frames, std::shared_ptr<void> held = nullptr);

  StreamReader& reader() { return reader_; }
  WriteQueue& writer() { return writer_; }
  Executor executor() { return socket_.get_executor(); }
  StreamSocket& socket() { return socket_; }
  StreamCounters& count() { return counters_; }
  int fd() const { return fd_; }

 private:
  static Task<void> ReadLoop(std::shared_ptr<Connection> self);
  Task<Status> ReadFrames();
  void Stopped(bool Connection::*side);
  void Send(std::unique_ptr<WriteOp> op);

  StreamSocket socket_;
  const int fd_;
  const FrameReceiver receiver_;
  StreamCounters& counters_;
  std::atomic<bool> stopped_ = false;
  StreamReader reader_;
  WriteQueue writer_;
  std::mutex mutex_;
  Status why_;  // not OK from Shutdown on
  bool reader_stopped_ = false;
  bool writer_stopped_ = false;
};

// A frame's write that a coroutine waits for.
class AwaitedWrite : public WriteOp {
 public:
  // Call once, after the pieces are set.
  Task<Status> Send(WriteQueue& queue);

 protected:
  virtual void Queued() {}  // it did not go out at once; may come after Done
  void Done(const Status& status) override { done_.Set(status); }

 private:
  OneShot<Status> done_;
};

}  // namespace nacre
