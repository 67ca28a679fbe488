// The sending side of a stream socket. A write goes out directly from the thread that wants it when the
// socket is idle; what does not fit at once, or comes meanwhile, is queued and sent in order, several writes
// per system call. Data is sent from where it lies.
//
// Thread-safe. A WriteOp belongs to its owner and must stay until it is done, as must the bytes it names. The
// queue lives inside its connection, which `keep_alive` holds while anything is under way.
#pragma once

#include <absl/container/inlined_vector.h>
#include <sys/uio.h>

#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <span>

#include "common/status.h"
#include "transport/tcp/address.h"
#include "transport/tcp/frame.h"

namespace nacre {

class WriteOp {
 public:
  virtual ~WriteOp() = default;

  // The first piece: a frame's header, kept inside.
  void SetHeader(const FrameHeader& header) {
    EncodeFrameHeader(header, header_.data());
    pieces.push_back({header_.data(), header_.size()});
  }

  absl::InlinedVector<iovec, 6> pieces;

 protected:
  // Called once if Start returned false, from any thread, not under a lock. The op may destroy itself.
  virtual void Done(const Status& status) = 0;

 private:
  friend class WriteQueue;
  std::array<std::byte, kFrameHeaderSize> header_;
  size_t next_ = 0;  // the first piece that is not wholly sent
};

class WriteQueue {
 public:
  struct Events {
    absl::AnyInvocable<void(Status)> failed;  // sending failed: end the connection
    absl::AnyInvocable<void()> idle;  // once after Close, when no bytes of anybody are touched any more
  };

  WriteQueue(StreamSocket& socket, Events events);

  // Before anything else. Weak, so that a connection can own its queue.
  void SetKeepAlive(std::weak_ptr<void> keep_alive) { keep_alive_ = std::move(keep_alive); }

  // True: finished by now, with *status. False: Done will be (or has been) called.
  bool Start(WriteOp* op, Status* status);

  // Writes that are started from now on until the executor has done what is queued there already leave
  // together: one system call, and one waking of the other side, instead of several. `most` writes together
  // leave at once.
  void Gather(size_t most);

  // Bytes that the socket has taken so far. From any thread.
  uint64_t sent() const { return sent_.load(std::memory_order_relaxed); }

  // Writes that are queued and those that come later fail with `why`. The socket has been shut down before.
  void Close(Status why);

 private:
  Status SendSome(std::span<WriteOp* const> ops, bool* blocked);
  void Flush();
  void EndGathering();
  void Release();
  void WaitWritable();
  void FailBatch(const Status& why);

  StreamSocket& socket_;
  Events events_;
  std::weak_ptr<void> keep_alive_;
  std::deque<WriteOp*> batch_;  // only for whoever is busy
  std::mutex mutex_;
  bool busy_ = false;         // somebody sends, or waits for the socket or for more to send
  size_t most_gathered_ = 0;  // not 0: EndGathering will come, and is busy unless somebody sends before it
  std::deque<WriteOp*> pending_;
  Status closed_;  // not OK after Close
  std::atomic<uint64_t> sent_ = 0;
};

}  // namespace nacre
