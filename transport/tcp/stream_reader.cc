#include "transport/tcp/stream_reader.h"

#include <sys/socket.h>

#include <algorithm>
#include <cstring>

namespace nacre {
namespace {

using boost::system::error_code;

constexpr size_t kMaxPieces = 63;  // of one system call; one more for the buffer
constexpr size_t kMostLowWater = 256 << 10;

// Drops `n` bytes from the front.
void Advance(std::span<iovec>* pieces, size_t n) {
  while (!pieces->empty() && n >= pieces->front().iov_len) {
    n -= pieces->front().iov_len;
    *pieces = pieces->subspan(1);
  }
  if (pieces->empty()) return;
  iovec& first = pieces->front();
  first.iov_base = static_cast<std::byte*>(first.iov_base) + n;
  first.iov_len -= n;
}

size_t TotalLength(std::span<const iovec> pieces) {
  size_t total = 0;
  for (const iovec& piece : pieces) total += piece.iov_len;
  return total;
}

}  // namespace

StreamReader::StreamReader(StreamSocket& socket, const std::atomic<bool>& stopped)
    : socket_(socket), stopped_(stopped), buffer_(new std::byte[kBufferSize]) {}

Task<Status> StreamReader::Receive(std::span<const asio::mutable_buffer> buffers, size_t* received) {
  if (stopped_.load(std::memory_order_acquire))
    co_return absl::CancelledError("the connection is being closed");
  auto read = [this, buffers](auto done) { socket_.async_read_some(buffers, std::move(done)); };
  auto [error, n] = co_await Operation<error_code, size_t>(read);
  *received = n;
  received_.store(received_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  if (!error) co_return OkStatus();
  if (error == asio::error::eof) co_return ErrnoError(ECONNRESET, "the other side closed the connection");
  co_return ErrnoError(error.value(), error.message());
}

// Errors do not matter: without it a wait ends sooner.
void StreamReader::WaitFor(size_t bytes) {
  const int wanted = static_cast<int>(std::clamp<size_t>(bytes, 1, kMostLowWater));
  if (wanted == low_water_) return;
  low_water_ = wanted;
  ::setsockopt(socket_.native_handle(), SOL_SOCKET, SO_RCVLOWAT, &wanted, sizeof wanted);
}

Task<Status> StreamReader::Fill(size_t n) {
  while (end_ - begin_ < n) {
    WaitFor(1);
    if (begin_ > 0) {
      std::memmove(buffer_.get(), buffer_.get() + begin_, end_ - begin_);
      end_ -= begin_;
      begin_ = 0;
    }
    const asio::mutable_buffer room(buffer_.get() + end_, kBufferSize - end_);
    size_t received = 0;
    Status status = co_await Receive(std::span(&room, 1), &received);
    if (!status.ok()) co_return status;
    end_ += received;
  }
  co_return OkStatus();
}

void StreamReader::TakeBuffered(std::span<iovec>* pieces) {
  while (!pieces->empty() && begin_ < end_) {
    const size_t take = std::min(pieces->front().iov_len, end_ - begin_);
    if (take > 0) std::memcpy(pieces->front().iov_base, buffer_.get() + begin_, take);
    begin_ += take;
    Advance(pieces, take);
  }
  Advance(pieces, 0);
}

Task<Status> StreamReader::Read(std::span<iovec> pieces) {
  TakeBuffered(&pieces);
  while (!pieces.empty()) {
    // The buffer is empty here: what follows the payload goes there.
    std::array<asio::mutable_buffer, kMaxPieces + 1> buffers;
    const std::span<iovec> next = pieces.first(std::min(pieces.size(), kMaxPieces));
    size_t count = 0;
    for (const iovec& piece : next) buffers[count++] = asio::mutable_buffer(piece.iov_base, piece.iov_len);
    const size_t wanted = TotalLength(next);
    if (next.size() == pieces.size()) buffers[count++] = asio::mutable_buffer(buffer_.get(), kBufferSize);
    size_t received = 0;
    WaitFor(wanted);
    Status status = co_await Receive(std::span(buffers).first(count), &received);
    if (!status.ok()) co_return status;
    begin_ = 0;
    end_ = received > wanted ? received - wanted : 0;
    Advance(&pieces, std::min(received, wanted));
  }
  co_return OkStatus();
}

}  // namespace nacre
