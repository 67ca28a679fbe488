#include "transport/tcp/connection.h"

#include <poll.h>

#include <absl/strings/str_format.h>
#include <sys/socket.h>

#include <cerrno>

namespace nacre {
namespace {

// Owns itself from Start until it is done.
class DetachedWrite : public WriteOp {
 public:
  explicit DetachedWrite(std::string body, std::shared_ptr<void> held = nullptr)
      : body_(std::move(body)), held_(std::move(held)) {}
  void AddBody() { pieces.push_back({body_.data(), body_.size()}); }

 protected:
  void Done(const Status&) override { delete this; }

 private:
  std::string body_;
  const std::shared_ptr<void> held_;
};

}  // namespace

Task<Status> AwaitedWrite::Send(WriteQueue& queue) {
  Status status;
  if (queue.Start(this, &status)) co_return status;
  Queued();
  co_return co_await done_.Wait();
}

Connection::Connection(StreamSocket socket, FrameReceiver receiver, StreamCounters& counters)
    : socket_(std::move(socket)),
      fd_(socket_.native_handle()),
      receiver_(receiver),
      counters_(counters),
      reader_(socket_, stopped_),
      writer_(socket_, {[this](const Status& why) { Shutdown(why); },
                        [this] { Stopped(&Connection::writer_stopped_); }}) {}

void Connection::Start() {
  writer_.SetKeepAlive(weak_from_this());
  Spawn(executor(), ReadLoop(shared_from_this()));
}

void Connection::Shutdown(const Status& why) {
  {
    std::lock_guard lock(mutex_);
    if (!why_.ok()) return;
    why_ = why;
  }
  stopped_.store(true, std::memory_order_release);
  ::shutdown(fd_, SHUT_RDWR);
  writer_.Close(why);
}

void Connection::Stopped(bool Connection::*side) {
  auto self = shared_from_this();
  {
    std::lock_guard lock(mutex_);
    this->*side = true;
    if (!reader_stopped_ || !writer_stopped_) return;
  }
  OnClosed(why_);
}

Task<void> Connection::ReadLoop(std::shared_ptr<Connection> self) {
  Status status = co_await self->Prepare();
  if (status.ok()) status = co_await self->ReadFrames();
  self->Shutdown(status);
  self->Stopped(&Connection::reader_stopped_);
}

Task<Status> Connection::ReadFrames() {
  for (;;) {
    if (reader_.buffered().size() < kFrameHeaderSize) {
      Status status = BeforeWait();
      if (status.ok()) status = co_await reader_.Fill(kFrameHeaderSize);
      if (!status.ok()) co_return status;
    }
    StatusOr<FrameHeader> header = ParseFrameHeader(reader_.buffered().first<kFrameHeaderSize>(), receiver_);
    if (!header.ok()) co_return header.status();
    reader_.Consume(kFrameHeaderSize);
    Status status = co_await OnFrame(*header);
    if (!status.ok()) co_return status;
    if (closing()) co_return absl::CancelledError("the connection is being closed");
  }
}

Task<Status> Connection::Refuse(FrameHeader header) {
  co_return ErrnoError(EPROTO, absl::StrFormat("a frame of type %d, which this connection does not have",
                                               static_cast<int>(header.type)));
}

Task<StatusOr<std::string>> Connection::ReadBody(uint32_t length) {
  std::string body(length, '\0');
  iovec piece{body.data(), body.size()};
  std::span<iovec> rest(&piece, 1);
  reader_.TakeBuffered(&rest);
  if (!rest.empty()) CO_RETURN_IF_ERROR(co_await reader_.Read(rest));
  co_return body;
}

void Connection::SendFrame(const FrameHeader& header, std::string body) {
  auto op = std::make_unique<DetachedWrite>(std::move(body));
  op->SetHeader(header);
  op->AddBody();
  Send(std::move(op));
}

bool Connection::HasHungUp() const {
  pollfd state{fd_, POLLRDHUP, 0};
  return closing() || ::poll(&state, 1, 0) != 0;
}

void Connection::SendBytes(std::string frames, std::shared_ptr<void> held) {
  auto op = std::make_unique<DetachedWrite>(std::move(frames), std::move(held));
  op->AddBody();
  Send(std::move(op));
}

void Connection::Send(std::unique_ptr<WriteOp> op) {
  Status status;
  WriteOp* started = op.release();
  if (writer_.Start(started, &status)) delete started;
}

}  // namespace nacre
