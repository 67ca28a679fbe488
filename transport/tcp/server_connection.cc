#include "transport/tcp/server_connection.h"

#include <absl/container/inlined_vector.h>
#include <absl/strings/escaping.h>
#include <absl/strings/str_format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "common/log.h"
#include "common/log_limit.h"
#include "transport/tcp/incoming_call.h"

namespace nacre {
namespace {

constexpr Duration kGreetingTimeout = std::chrono::seconds(10);
constexpr int kLooksInTimeout = 4;

}  // namespace

void CallSink::Start(std::shared_ptr<IncomingCall> call) {
  std::optional<Task<void>> task;
  {
    std::shared_lock lock(mutex_);
    if (closed_) return;
    task = handler_(std::move(call));
  }
  Spawn(executor_, *std::move(task));
}

void CallSink::Close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
}

ServerConnection::ServerConnection(StreamSocket socket, std::string name, std::shared_ptr<CallSink> sink,
                                   Clock& clock, const TcpOptions& options, absl::AnyInvocable<void()> lost,
                                   StreamCounters& counters)
    : Connection(std::move(socket), FrameReceiver::kServer, counters),
      name_(std::move(name)),
      sink_(std::move(sink)),
      clock_(clock),
      calls_at_once_(options.calls_per_connection),
      transfer_timeout_(options.transfer_timeout),
      identity_(options.identity),
      offers_(options.offers),
      attach_(options.attach),
      lost_(std::move(lost)) {}

void ServerConnection::Serve() {
  auto expire = [weak = weak_from_this()] {
    if (auto self = weak.lock()) self->Shutdown(ErrnoError(EPROTO, "no greeting came"));
  };
  {
    std::lock_guard lock(mutex_);
    greeting_timer_ = clock_.After(executor(), kGreetingTimeout, std::move(expire));
  }
  stalled_ = std::make_shared<Watchdog>(
      executor(), clock_,
      [weak = std::weak_ptr(std::static_pointer_cast<ServerConnection>(shared_from_this()))](Duration now) {
        auto self = weak.lock();
        return self == nullptr ? kNoDeadline : self->Expire(now);
      });
  count().server_connections.Add();
  Start();
}

Task<Status> ServerConnection::OnFrame(FrameHeader header) {
  switch (header.type) {
    case FrameType::kCall:
      return OnCall(header);
    case FrameType::kData:
      return OnData(header);
    case FrameType::kAttach:
      return OnAttach(header);
    case FrameType::kHello:
      return OnHello(header);
    default:
      return Refuse(header);
  }
}

Task<Status> ServerConnection::OnHello(FrameHeader header) {
  if (std::exchange(greeted_, true)) co_return ErrnoError(EPROTO, "a second greeting");
  CO_ASSIGN_OR_RETURN(std::string text, co_await ReadBody(header.body_length));
  CO_ASSIGN_OR_RETURN(const Hello who, ParseHello(text));
  name_ = absl::StrFormat("%s (%s)", name_, absl::CHexEscape(who.identity));
  {
    std::lock_guard lock(mutex_);
    greeting_timer_.reset();
  }
  FrameHeader hello{FrameType::kHello};
  hello.offset = calls_at_once_;
  Hello own{identity_};
  if (offers_) own.offers = offers_();
  text = EncodeHello(own);
  hello.body_length = static_cast<uint32_t>(text.size());
  SendFrame(hello, std::move(text));
  co_return OkStatus();
}

Task<Status> ServerConnection::OnCall(FrameHeader header) {
  if (!greeted_) co_return ErrnoError(EPROTO, "a call without a greeting");
  CO_ASSIGN_OR_RETURN(std::string body, co_await ReadBody(header.body_length));
  std::unique_ptr<std::byte[]> eager;
  if (header.payload_length > 0) {
    eager.reset(new std::byte[header.payload_length]);
    iovec piece{eager.get(), header.payload_length};
    CO_RETURN_IF_ERROR(co_await reader().Read(std::span(&piece, 1)));
  }
  CO_RETURN_IF_ERROR(AddCall(header.call_id));
  count().server_calls.Add();
  CO_ASSIGN_OR_RETURN(std::shared_ptr<IncomingCall> call, NewCall(header, std::move(body), std::move(eager)));
  sink_->Start(std::move(call));
  co_return OkStatus();
}

StatusOr<std::shared_ptr<IncomingCall>> ServerConnection::NewCall(const FrameHeader& header, std::string body,
                                                                  std::unique_ptr<std::byte[]> eager) {
  auto self = std::static_pointer_cast<ServerConnection>(shared_from_this());
  return std::make_shared<TcpIncomingCall>(std::move(self), header, std::move(body), std::move(eager));
}

// Clients keep to the limit as they see it. A call leaves the table before its reply can be seen, so it is no
// more here than there. Replies that wait for the socket are bounded too: those that have gone out and are
// not noted yet (one batch of the writer) and as many as the client may ask for meanwhile.
Status ServerConnection::AddCall(uint64_t id) {
  std::lock_guard lock(mutex_);
  const auto limit = static_cast<int64_t>(calls_at_once_);
  if (static_cast<int64_t>(calls_.size()) >= limit || unsent_replies_ > 2 * limit) {
    return ErrnoError(EPROTO, absl::StrFormat("more than the allowed %d calls at once", limit));
  }
  if (calls_.emplace(id, nullptr).second) return OkStatus();
  return ErrnoError(EPROTO, absl::StrFormat("call %#x is already in progress", id));
}

void ServerConnection::RemoveCall(uint64_t id) {
  std::lock_guard lock(mutex_);
  calls_.erase(id);
}

Status ServerConnection::AddTransfer(uint64_t id, PendingTransfer* transfer) {
  std::lock_guard lock(mutex_);
  if (closed_) return ErrnoError(ECONNRESET, "the caller is gone");
  PendingTransfer*& place = calls_[id];
  if (place != nullptr) return absl::FailedPreconditionError("a call can transfer one thing at a time");
  place = transfer;
  return OkStatus();
}

StatusOr<ServerConnection::PendingTransfer*> ServerConnection::FindTransfer(const FrameHeader& header) {
  std::lock_guard lock(mutex_);
  auto found = calls_.find(header.call_id);
  PendingTransfer* transfer = found == calls_.end() ? nullptr : found->second;
  if (transfer != nullptr && transfer->offset == header.offset && transfer->length == header.payload_length) {
    return transfer;
  }
  return ErrnoError(EPROTO, absl::StrFormat("%d bytes at %d for call %#x, which nobody waits for",
                                            header.payload_length, header.offset, header.call_id));
}

void ServerConnection::EndTransfer(uint64_t id, PendingTransfer* transfer) {
  {
    std::lock_guard lock(mutex_);
    calls_[id] = nullptr;
  }
  transfer->done.Set(OkStatus());
}

Task<Status> ServerConnection::OnData(FrameHeader header) {
  CO_ASSIGN_OR_RETURN(PendingTransfer * get, FindTransfer(header));
  CO_RETURN_IF_ERROR(co_await reader().Read(get->pieces));
  EndTransfer(header.call_id, get);
  co_return OkStatus();
}

Task<Status> ServerConnection::OnAttach(FrameHeader header) {
  if (!greeted_) co_return ErrnoError(EPROTO, "a request to attach without a greeting");
  if (std::exchange(attached_, true)) co_return ErrnoError(EPROTO, "a second request to attach");
  AttachRequest request;
  CO_ASSIGN_OR_RETURN(request.body, co_await ReadBody(header.body_length));
  request.client = name_;
  request.local_ipv4 = LocalIpv4(fd());
  request.close = [weak = weak_from_this()](const Status& why) {
    if (auto self = weak.lock()) self->Shutdown(why);
  };
  StatusOr<Attached> attached = absl::UnimplementedError("this server attaches nothing to its connections");
  if (attach_) {
    Task<StatusOr<Attached>> attaching = attach_(std::move(request));
    attached = co_await std::move(attaching);
  }
  FrameHeader answer{FrameType::kAttach};
  std::string text;
  if (attached.ok()) {
    Keep(attached->attachment);
    text = std::move(attached->reply);
  } else {
    answer.flags = kFrameFailed;
    text = std::string(attached.status().message().substr(0, kMaxAttachSize));
  }
  answer.body_length = static_cast<uint32_t>(text.size());
  SendFrame(answer, std::move(text));
  co_return OkStatus();
}

// OnClosed, which tells it, comes after the reader's end.
void ServerConnection::Keep(std::shared_ptr<Attachment> attachment) {
  std::lock_guard lock(mutex_);
  attachment_ = std::move(attachment);
}

Task<Status> ServerConnection::Send(AwaitedWrite& write) {
  Status status = co_await write.Send(writer());
  if (status.ok()) co_return status;
  co_return ErrnoError(ECONNRESET, absl::StrFormat("the caller is gone: %s", status.message()));
}

uint64_t ServerConnection::Moved(Direction direction) {
  return direction == kFromClient ? reader().received() : writer().sent();
}

void ServerConnection::CountWaiting(Direction direction, int change) {
  const Duration now = change > 0 ? clock_.Now() : Duration(0);
  {
    std::lock_guard lock(mutex_);
    Waiting& waiting = waiting_[direction];
    waiting.count += change;
    if (change < 0 || waiting.count != 1) return;
    waiting.bytes = Moved(direction);
    waiting.since = now;
  }
  stalled_->Arm(DeadlineAfter(now, transfer_timeout_ / kLooksInTimeout));
}

// Looks several times within the time-out, to see when bytes moved last.
Duration ServerConnection::Expire(Duration now) {
  bool any = false, stalled = false;
  {
    std::lock_guard lock(mutex_);
    for (Direction direction : {kFromClient, kToClient}) {
      Waiting& waiting = waiting_[direction];
      if (waiting.count <= 0) continue;
      any = true;
      const uint64_t moved = Moved(direction);
      if (std::exchange(waiting.bytes, moved) != moved) waiting.since = now;
      stalled = stalled || now - waiting.since >= transfer_timeout_;
    }
  }
  if (!any) return kNoDeadline;
  if (!stalled) return DeadlineAfter(now, transfer_timeout_ / kLooksInTimeout);
  count().server_stalled.Add();
  Shutdown(ErrnoError(ETIMEDOUT, absl::StrFormat("it neither sent nor took a byte for %d ms, with calls that "
                                                 "wait for it",
                                                 transfer_timeout_ / std::chrono::milliseconds(1))));
  return kNoDeadline;
}

void ServerConnection::CountUnsentReply(int change) {
  std::lock_guard lock(mutex_);
  unsent_replies_ += change;
}

void ServerConnection::OnClosed(const Status& why) {
  if (stalled_ != nullptr) stalled_->Stop();
  std::vector<PendingTransfer*> transfers;
  absl::AnyInvocable<void()> lost;
  std::shared_ptr<Attachment> attachment;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    greeting_timer_.reset();
    for (auto& [id, transfer] : calls_) {
      if (transfer != nullptr) transfers.push_back(std::exchange(transfer, nullptr));
    }
    lost = std::move(lost_);
    attachment = std::move(attachment_);
  }
  if (why.code() == absl::StatusCode::kInvalidArgument) {
    static LogLimit limit(
        10, std::chrono::seconds(10));  // of all strangers together: the log must not be theirs to fill
    count().protocol_errors.Add();
    if (auto more = limit.Admit(clock_.Now())) {
      LogWarning("data plane: closed the connection from %s: %s%s", name_, why.message(), *more);
    }
  } else if (why.code() == absl::StatusCode::kDeadlineExceeded) {
    LogWarning("data plane: gave up the connection from %s: %s", name_, why.message());
  } else {
    LogDebug("data plane: the connection from %s has ended: %s", name_, why.message());
  }
  const Status gone = ErrnoError(ECONNRESET, absl::StrFormat("the caller is gone: %s", why.message()));
  for (PendingTransfer* transfer : transfers) transfer->done.Set(gone);
  if (attachment != nullptr) attachment->ConnectionClosed(gone);
  if (lost) lost();
}

}  // namespace nacre
