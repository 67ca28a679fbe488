#include "transport/tcp/client_connection.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <algorithm>

#include "common/log.h"
#include "transport/memory_device.h"

namespace nacre {
namespace {

constexpr int kSlotBits = 16;
constexpr uint64_t kMaxSlots = 1 << kSlotBits;
constexpr int kMaxDataWrites = 16;  // of one call at once

// Copies what has been received for a call to its device while the connection receives more.
Task<void> CopyReceived(std::shared_ptr<ClientCall> call, uint64_t offset, StagingBuffer received) {
  std::vector<iovec> from = {ToIovec(received.bytes)};
  const Status copied = co_await CopyToDevice(call->memory, offset, std::move(from), call->sums);
  call->result.EndCopy(copied);
}

}  // namespace

// The answer to one get, of a call that is held for it (Hold).
class DataWrite : public WriteOp {
 public:
  DataWrite(ClientConnection* connection, std::shared_ptr<ClientCall> call)
      : connection_(connection), call_(std::move(call)) {
    ++call_->data_writes_;
  }

  void Done(const Status&) override {
    --call_->data_writes_;
    connection_->Drop(call_);
    delete this;
  }

 private:
  ClientConnection* const connection_;
  const std::shared_ptr<ClientCall> call_;
};

void ClientCall::Done(const Status&) { connection_->Drop(shared_from_this()); }

ClientConnection::ClientConnection(StreamSocket socket, std::string address, Clock& clock,
                                   StreamCounters& counters)
    : Connection(std::move(socket), FrameReceiver::kClient, counters),
      address_(std::move(address)),
      clock_(clock) {}

Task<Status> ClientConnection::Greet(std::string identity, Duration timeout) {
  auto expire =
      [weak = std::weak_ptr(std::static_pointer_cast<ClientConnection>(shared_from_this()))](Duration now) {
        auto self = weak.lock();
        return self == nullptr ? kNoDeadline : self->Expire(now);
      };
  watchdog_ = std::make_shared<Watchdog>(executor(), clock_, std::move(expire));
  FrameHeader hello{FrameType::kHello};
  std::string text = EncodeHello({std::move(identity)});
  hello.body_length = static_cast<uint32_t>(text.size());
  SendFrame(hello, std::move(text));
  auto timer = clock_.After(executor(), timeout, [weak = weak_from_this()] {
    if (auto self = weak.lock()) self->Shutdown(ErrnoError(ETIMEDOUT, "it does not answer the greeting"));
  });
  Start();
  co_return co_await greeted_.Wait();
}

Task<StatusOr<std::string>> ClientConnection::Attach(std::string request, Duration timeout,
                                                     absl::AnyInvocable<void(const Status&)> closed) {
  Status ended;
  {
    std::lock_guard lock(mutex_);
    ended = ended_;
    if (ended.ok()) attachment_closed_ = std::exchange(closed, nullptr);
  }
  if (!ended.ok()) {
    closed(ended);
    co_return ended;
  }
  FrameHeader header{FrameType::kAttach};
  header.body_length = static_cast<uint32_t>(request.size());
  SendFrame(header, std::move(request));
  auto timer = clock_.After(executor(), timeout, [weak = weak_from_this()] {
    if (auto self = weak.lock()) self->Shutdown(ErrnoError(ETIMEDOUT, "it does not answer"));
  });
  co_return co_await attached_.Wait();
}

bool ClientConnection::Begin(const std::shared_ptr<ClientCall>& call) {
  bool now = false;
  {
    std::lock_guard lock(mutex_);
    if (!open_) return false;
    now = !free_slots_.empty();
    if (now) {
      Assign(call);
    } else {
      waiting_.push_back(call);
    }
  }
  count().client_calls.Add();
  watchdog_->Arm(IsGivenUp(call->given_up()) ? kNow : call->deadline);
  if (now) Send(call);
  return true;
}

void ClientConnection::Assign(const std::shared_ptr<ClientCall>& call) {
  const uint32_t index = free_slots_.back();
  free_slots_.pop_back();
  Slot& slot = slots_[index];
  slot.call = call;
  call->id_ = (++slot.generation << kSlotBits) | index;
  call->holds_ = 2;
}

void ClientConnection::Send(const std::shared_ptr<ClientCall>& call) {
  FrameHeader header{FrameType::kCall, static_cast<uint8_t>(call->kind), call->id_, call->memory.size()};
  header.body_length = static_cast<uint32_t>(call->body.size());
  const bool source = call->kind == CallMemory::kGetSource;
  const bool shared = source && ShowSource(*call, &call->shown_);
  const bool eager = source && !shared && call->memory.size() <= kMaxEagerSize;
  if (shared) {
    header.type = FrameType::kSharedCall;
    header.body_length += static_cast<uint32_t>(call->shown_.size());
  }
  if (eager) header.payload_length = static_cast<uint32_t>(call->memory.size());
  call->SetHeader(header);
  if (shared) call->pieces.push_back({call->shown_.data(), call->shown_.size()});
  call->pieces.push_back({const_cast<char*>(call->body.data()), call->body.size()});
  if (eager) {
    call->memory.AppendPieces(0, call->memory.size(), &call->pieces);
    count().client_bytes_got.Add(static_cast<int64_t>(call->memory.size()));
  }
  call->connection_ = this;
  Status status;
  if (writer().Start(call.get(), &status)) call->Done(status);
}

bool ClientConnection::Hold(const std::shared_ptr<ClientCall>& call) {
  {
    std::lock_guard lock(mutex_);
    if (call->replied_) return false;
  }
  ++call->holds_;  // its reply, which only the reader takes note of, holds it until then
  return true;
}

// One of the things that the call waits for has happened.
void ClientConnection::Drop(const std::shared_ptr<ClientCall>& call) {
  if (--call->holds_ > 0) return;
  std::shared_ptr<ClientCall> next;
  {
    std::lock_guard lock(mutex_);
    const auto index = static_cast<uint32_t>(call->id_ % kMaxSlots);
    if (!open_ || slots_[index].call != call) return;  // OnClosed has it
    slots_[index].call = nullptr;
    free_slots_.push_back(index);
    if (!waiting_.empty()) {
      next = std::move(waiting_.front());
      waiting_.pop_front();
      Assign(next);
    }
  }
  call->result.Set(std::move(call->reply_));
  if (next != nullptr) Send(next);
}

Task<Status> ClientConnection::OnFrame(FrameHeader header) {
  switch (header.type) {
    case FrameType::kHello:
      return OnHello(header);
    case FrameType::kPut:
      return OnPut(header);
    case FrameType::kGet:
      return OnGet(header);
    case FrameType::kAttach:
      return OnAttach(header);
    case FrameType::kReply:
      return OnReply(header);
    default:
      return Refuse(header);
  }
}

Task<Status> ClientConnection::OnHello(FrameHeader header) {
  CO_ASSIGN_OR_RETURN(std::string text, co_await ReadBody(header.body_length));
  if (header.flags == kFrameFailed) co_return ErrnoError(ECONNREFUSED, "it refuses: " + text);
  if (header.offset == 0 || header.offset > kMaxSlots) {
    co_return ErrnoError(EPROTO, absl::StrFormat("it allows %d calls at once", header.offset));
  }
  CO_ASSIGN_OR_RETURN(Hello server, ParseHello(text));
  {
    std::lock_guard lock(mutex_);
    if (!slots_.empty()) co_return ErrnoError(EPROTO, "a second greeting");
    server_ = std::move(server);
    slots_.resize(header.offset);
    for (size_t i = slots_.size(); i > 0; --i) free_slots_.push_back(static_cast<uint32_t>(i - 1));
    open_ = true;
  }
  greeted_.Set(OkStatus());
  co_return OkStatus();
}

Task<Status> ClientConnection::OnAttach(FrameHeader header) {
  CO_ASSIGN_OR_RETURN(std::string text, co_await ReadBody(header.body_length));
  StatusOr<std::string> reply = std::move(text);
  if (header.flags == kFrameFailed) reply = absl::UnavailableError(*reply);
  if (attached_.Set(std::move(reply))) co_return OkStatus();
  co_return ErrnoError(EPROTO, "a second answer to a request to attach");
}

StatusOr<std::shared_ptr<ClientCall>> ClientConnection::Find(const FrameHeader& header, CallMemory kind) {
  std::shared_ptr<ClientCall> call;
  {
    std::lock_guard lock(mutex_);
    const uint64_t index = header.call_id % kMaxSlots;
    if (index < slots_.size()) call = slots_[index].call;
  }
  if (call == nullptr || call->id_ != header.call_id) {
    return ErrnoError(EPROTO, absl::StrFormat("a frame of type %d for call %#x, which is not in progress",
                                              static_cast<int>(header.type), header.call_id));
  }
  if (header.type == FrameType::kReply) return call;
  Status status = CheckTransfer(kind, call->kind, call->memory.size(), header.offset, header.payload_length);
  if (!status.ok()) return ErrnoError(EPROTO, std::string(status.message()));
  return call;
}

Task<Status> ClientConnection::OnPut(FrameHeader header) {
  CO_ASSIGN_OR_RETURN(std::shared_ptr<ClientCall> call, Find(header, CallMemory::kPutTarget));
  if (call->memory.device() != nullptr) co_return co_await PutToDevice(header, std::move(call));
  absl::InlinedVector<iovec, 8> pieces;
  call->memory.AppendPieces(header.offset, header.payload_length, &pieces);
  count().client_bytes_put.Add(header.payload_length);
  co_return co_await reader().Read(std::span(pieces.data(), pieces.size()));
}

Task<Status> ClientConnection::PutToDevice(FrameHeader header, std::shared_ptr<ClientCall> call) {
  count().client_bytes_put.Add(header.payload_length);
  for (uint64_t done = 0; done < header.payload_length;) {
    // Without staging buffers the device is of no use to anybody: the connection ends with its calls.
    CO_ASSIGN_OR_RETURN(StagingBuffer staging,
                        co_await call->memory.device()->Stage(header.payload_length - done));
    iovec piece = ToIovec(staging.bytes);
    CO_RETURN_IF_ERROR(co_await reader().Read(std::span(&piece, 1)));
    if (!call->result.BeginCopy()) co_return ErrnoError(EPROTO, "a put for a call that is over");
    const uint64_t at = header.offset + done;
    done += staging.bytes.size();
    Spawn(executor(), CopyReceived(call, at, std::move(staging)));
  }
  co_return OkStatus();
}

Task<Status> ClientConnection::OnGet(FrameHeader header) {
  CO_ASSIGN_OR_RETURN(std::shared_ptr<ClientCall> call, Find(header, CallMemory::kGetSource));
  if (call->data_writes_ >= kMaxDataWrites) co_return ErrnoError(EPROTO, "too many gets of one call at once");
  if (!Hold(call)) co_return ErrnoError(EPROTO, "a get for a call that has been replied to");
  auto* write = new DataWrite(this, call);  // owns itself
  FrameHeader data = header;
  data.type = FrameType::kData;
  write->SetHeader(data);
  call->memory.AppendPieces(header.offset, header.payload_length, &write->pieces);
  count().client_bytes_got.Add(header.payload_length);
  Status status;
  if (writer().Start(write, &status)) write->Done(status);
  co_return OkStatus();
}

Task<Status> ClientConnection::OnReply(FrameHeader header) {
  CO_ASSIGN_OR_RETURN(std::string body, co_await ReadBody(header.body_length));
  CO_ASSIGN_OR_RETURN(std::shared_ptr<ClientCall> call, Find(header, CallMemory::kNone));
  {
    std::lock_guard lock(mutex_);
    if (call->replied_) co_return ErrnoError(EPROTO, "a second reply to a call");
    call->replied_ = true;
  }
  if (header.flags == kFrameFailed) {
    call->reply_ = absl::InternalError(body);
  } else {
    call->reply_ = std::move(body);
  }
  Drop(call);
  co_return OkStatus();
}

// Ends what has waited for a slot for too long or is given up, and the whole connection if a call under way
// has expired: the server could still write into its memory.
Duration ClientConnection::Expire(Duration now) {
  std::vector<std::shared_ptr<ClientCall>> unsent;
  Duration next = kNoDeadline;
  int expired = 0;
  {
    std::lock_guard lock(mutex_);
    auto keep = waiting_.begin();
    for (auto& call : waiting_) {
      if (call->HasExpired(now)) {
        unsent.push_back(std::move(call));
      } else {
        next = std::min(next, call->deadline);
        *keep++ = std::move(call);
      }
    }
    waiting_.erase(keep, waiting_.end());
    for (Slot& slot : slots_) {
      if (slot.call == nullptr) continue;
      if (slot.call->HasExpired(now)) {
        slot.call->timed_out_ = true;
        ++expired;
      } else {
        next = std::min(next, slot.call->deadline);
      }
    }
  }
  count().client_timeouts.Add(static_cast<int64_t>(unsent.size()) + expired);
  for (const auto& call : unsent) {
    call->result.Set(
        ErrnoError(ETIMEDOUT, absl::StrFormat("%s was too busy to take the call in time", address_)));
  }
  if (expired == 0) return next;
  Shutdown(ErrnoError(ECONNRESET, "closed because another call over it timed out or was given up"));
  return kNoDeadline;
}

void ClientConnection::OnClosed(const Status& why) {
  std::vector<std::shared_ptr<ClientCall>> calls;
  bool was_open = false;
  absl::AnyInvocable<void(const Status&)> attachment_closed;
  {
    std::lock_guard lock(mutex_);
    was_open = std::exchange(open_, false);
    ended_ = why;
    attachment_closed = std::exchange(attachment_closed_, nullptr);
    for (Slot& slot : slots_) {
      if (slot.call != nullptr) calls.push_back(std::move(slot.call));
    }
    calls.insert(calls.end(), waiting_.begin(), waiting_.end());
    waiting_.clear();
  }
  watchdog_->Stop();
  greeted_.Set(why);
  if (was_open) count().client_lost.Add();
  if (why.code() == absl::StatusCode::kInvalidArgument) {
    count().protocol_errors.Add();
    LogWarning("data plane: closed the connection to %s: %s", address_, why.message());
  }
  const Status unavailable =
      ErrnoError(ECONNRESET, absl::StrFormat("lost the connection to %s: %s", address_, why.message()));
  const Status timed_out = ErrnoError(ETIMEDOUT, absl::StrFormat("%s did not answer in time", address_));
  for (const auto& call : calls) call->result.Set(call->timed_out_ ? timed_out : unavailable);
  attached_.Set(unavailable);
  if (attachment_closed) attachment_closed(unavailable);
}

}  // namespace nacre
