// The receiving side of a stream socket: a small buffer that takes a frame's header and what follows it in
// one system call, and reads that put large payloads straight into place. For one coroutine at a time.
#pragma once

#include <sys/uio.h>

#include <array>
#include <atomic>
#include <memory>
#include <span>

#include "common/status.h"
#include "common/task.h"
#include "transport/tcp/address.h"

namespace nacre {

class StreamReader {
 public:
  // While `stopped` is set nothing more is received.
  StreamReader(StreamSocket& socket, const std::atomic<bool>& stopped);

  // Bytes that are buffered and not consumed.
  std::span<const std::byte> buffered() const { return {buffer_.get() + begin_, end_ - begin_}; }
  void Consume(size_t n) { begin_ += n; }

  // Waits until `n` (at most kBufferSize) bytes are buffered. UNAVAILABLE: the stream has ended.
  Task<Status> Fill(size_t n);

  // Fills the pieces, from the buffer first. Changes them.
  Task<Status> Read(std::span<iovec> pieces);

  // As Read, as far as the buffer goes; what is left to read is left in *pieces.
  void TakeBuffered(std::span<iovec>* pieces);

  // Bytes that have come so far. From any thread.
  uint64_t received() const { return received_.load(std::memory_order_relaxed); }

  static constexpr size_t kBufferSize = 16 << 10;

 private:
  Task<Status> Receive(std::span<const asio::mutable_buffer> buffers, size_t* received);
  // The socket counts as readable from so much on: a large payload is not worth a wake-up for each segment.
  // No more than is certain to come.
  void WaitFor(size_t bytes);

  StreamSocket& socket_;
  const std::atomic<bool>& stopped_;
  const std::unique_ptr<std::byte[]> buffer_;
  size_t begin_ = 0, end_ = 0;
  std::atomic<uint64_t> received_ = 0;
  int low_water_ = 1;
};

}  // namespace nacre
