#include "transport/tcp/write_queue.h"

#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstring>
#include <utility>

namespace nacre {
namespace {

constexpr size_t kMaxPieces = 64;  // of one system call

}  // namespace

WriteQueue::WriteQueue(StreamSocket& socket, Events events) : socket_(socket), events_(std::move(events)) {}

bool WriteQueue::Start(WriteOp* op, Status* status) {
  bool full = false;
  {
    std::lock_guard lock(mutex_);
    if (!closed_.ok()) {
      *status = closed_;
      return true;
    }
    if (busy_) {
      pending_.push_back(op);
      if (most_gathered_ == 0 || pending_.size() < most_gathered_) return false;
      most_gathered_ = 0;
      full = true;
    }
    busy_ = true;
  }
  if (full) {
    Flush();
    return false;
  }
  bool blocked = false;
  *status = SendSome(std::span(&op, 1), &blocked);
  if (status->ok() && blocked) {
    batch_.push_back(op);
    WaitWritable();
    return false;
  }
  if (!status->ok()) events_.failed(*status);
  Release();
  return true;
}

void WriteQueue::Gather(size_t most) {
  {
    std::lock_guard lock(mutex_);
    if (busy_ || !closed_.ok()) return;
    busy_ = true;
    most_gathered_ = most;
  }
  asio::post(socket_.get_executor(), [this, alive = keep_alive_.lock()] { EndGathering(); });
}

void WriteQueue::EndGathering() {
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(most_gathered_, 0) == 0) return;  // there were so many that they have gone
  }
  Flush();
}

void WriteQueue::Close(Status why) {
  {
    std::lock_guard lock(mutex_);
    closed_ = std::move(why);
    if (busy_) return;  // whoever is busy sees it
  }
  events_.idle();
}

// Sends from the ops in order until all is sent or the socket is full, which it sets *blocked for.
Status WriteQueue::SendSome(std::span<WriteOp* const> ops, bool* blocked) {
  for (;;) {
    std::array<iovec, kMaxPieces> pieces;
    size_t count = 0, wanted = 0;
    for (WriteOp* op : ops) {
      for (size_t i = op->next_; i < op->pieces.size() && count < kMaxPieces; ++i) {
        pieces[count++] = op->pieces[i];
        wanted += op->pieces[i].iov_len;
      }
    }
    if (count == 0) return OkStatus();
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = count;
    ssize_t sent = ::sendmsg(socket_.native_handle(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno != EAGAIN) return ErrnoError(errno, std::strerror(errno));
    size_t left = std::max<ssize_t>(sent, 0);
    sent_.fetch_add(left, std::memory_order_relaxed);
    for (WriteOp* op : ops) {
      for (; op->next_ < op->pieces.size(); ++op->next_) {
        iovec& piece = op->pieces[op->next_];
        if (left < piece.iov_len) break;
        left -= piece.iov_len;
      }
      if (op->next_ == op->pieces.size()) continue;
      iovec& piece = op->pieces[op->next_];
      piece.iov_base = static_cast<std::byte*>(piece.iov_base) + left;
      piece.iov_len -= left;
      break;
    }
    if (sent < static_cast<ssize_t>(wanted)) {
      *blocked = true;
      return OkStatus();
    }
  }
}

void WriteQueue::Flush() {
  for (;;) {
    Status closed;
    bool last = false;
    {
      std::lock_guard lock(mutex_);
      batch_.insert(batch_.end(), pending_.begin(), pending_.end());
      pending_.clear();
      closed = closed_;
      last = batch_.empty();
      if (last) busy_ = false;
    }
    if (last) {
      if (!closed.ok()) events_.idle();
      return;
    }
    if (!closed.ok()) {
      FailBatch(closed);
      continue;
    }
    bool blocked = false;
    const std::vector<WriteOp*> ops(batch_.begin(), batch_.end());
    Status status = SendSome(ops, &blocked);
    if (!status.ok()) {
      events_.failed(status);
      FailBatch(status);
      continue;
    }
    while (!batch_.empty() && batch_.front()->next_ == batch_.front()->pieces.size()) {
      WriteOp* op = batch_.front();
      batch_.pop_front();
      op->Done(OkStatus());
    }
    if (!blocked) continue;
    WaitWritable();
    return;
  }
}

void WriteQueue::Release() {
  Status closed;
  {
    std::lock_guard lock(mutex_);
    if (!pending_.empty()) {
      asio::post(socket_.get_executor(), [this, alive = keep_alive_.lock()] { Flush(); });
      return;
    }
    busy_ = false;
    closed = closed_;
  }
  if (!closed.ok()) events_.idle();
}

void WriteQueue::WaitWritable() {
  socket_.async_wait(StreamSocket::wait_write,
                     [this, alive = keep_alive_.lock()](const boost::system::error_code&) { Flush(); });
}

void WriteQueue::FailBatch(const Status& why) {
  std::deque<WriteOp*> failed;
  failed.swap(batch_);
  for (WriteOp* op : failed) op->Done(why);
}

}  // namespace nacre
