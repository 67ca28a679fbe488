#include "transport/shm/shm_server.h"

#include <absl/container/inlined_vector.h>
#include <absl/strings/str_format.h>
#include <poll.h>

#include <cerrno>

#include "common/log.h"
#include "common/metrics.h"
#include "transport/memory.h"
#include "transport/shm/setup.h"
#include "transport/shm/shm_counters.h"

namespace nacre::shm {
namespace {

// The part of the pieces from `offset` on.
std::vector<iovec> From(std::span<const iovec> pieces, uint64_t offset) {
  while (!pieces.empty() && offset >= pieces.front().iov_len) {
    offset -= pieces.front().iov_len;
    pieces = pieces.subspan(1);
  }
  std::vector<iovec> rest(pieces.begin(), pieces.end());
  if (rest.empty()) return rest;
  rest.front().iov_base = static_cast<std::byte*>(rest.front().iov_base) + offset;
  rest.front().iov_len -= offset;
  return rest;
}

}  // namespace

ShmServerConnection::ShmServerConnection(StreamSocket socket, std::string name,
                                         std::shared_ptr<CallSink> sink, Clock& clock,
                                         const TcpOptions& options, absl::AnyInvocable<void()> lost,
                                         std::shared_ptr<ShmMemory> memory, ShmServerOptions shm_options)
    : ServerConnection(std::move(socket), std::move(name), std::move(sink), clock, options, std::move(lost),
                       Counters()),
      memory_(std::move(memory)),
      shm_options_(shm_options),
      fd_(this->socket().native_handle()) {}

Task<Status> ShmServerConnection::Prepare() {
  if (Status user = CheckUser(fd_); !user.ok()) {
    LogWarning("data plane: refused to show memory: %s", user.message());
    count().server_refused.Add();
    CO_RETURN_IF_ERROR(SendRefusal(fd_));
    co_return absl::CancelledError("refused");
  }
  auto expire = [weak = std::weak_ptr(std::static_pointer_cast<ShmServerConnection>(shared_from_this()))](
                    Duration now) {
    auto self = weak.lock();
    return self == nullptr ? kNoDeadline : self->Expire(now);
  };
  watchdog_ = std::make_shared<Watchdog>(executor(), clock(), std::move(expire));
  shown_ = memory_->Snapshot();
  CO_RETURN_IF_ERROR(SendSetup(fd_, shown_));
  CO_ASSIGN_OR_RETURN(views_, co_await ReceiveSetup(socket(), memory_.get()));
  co_return OkStatus();
}

Task<Status> ShmServerConnection::OnFrame(FrameHeader header) {
  switch (header.type) {
    case FrameType::kSharedCall:
      return OnCall(header);
    case FrameType::kTaken:
      return OnTaken(header);
    default:
      return ServerConnection::OnFrame(header);
  }
}

StatusOr<std::shared_ptr<IncomingCall>> ShmServerConnection::NewCall(const FrameHeader& header,
                                                                     std::string body,
                                                                     std::unique_ptr<std::byte[]> eager) {
  auto self = std::static_pointer_cast<ShmServerConnection>(shared_from_this());
  std::vector<iovec> source;
  if (header.type == FrameType::kSharedCall) {
    ASSIGN_OR_RETURN(source, TakeCountedPieces(&body, views_, header.offset));
  }
  return std::make_shared<ShmIncomingCall>(std::move(self), header, std::move(body), std::move(eager),
                                           std::move(source));
}

bool ShmServerConnection::Locate(std::span<const std::span<const std::byte>> buffers,
                                 std::string* pieces) const {
  if (buffers.size() > kMaxSharedPieces) return false;
  for (const std::span<const std::byte>& buffer : buffers) {
    uint32_t region = 0;
    for (; region < shown_.size(); ++region) {
      const SharedMemory& memory = *shown_[region];
      if (buffer.data() >= memory.data() && buffer.data() + buffer.size() <= memory.data() + memory.size()) {
        break;
      }
    }
    if (region == shown_.size()) return false;
    const auto offset = static_cast<uint64_t>(buffer.data() - shown_[region]->data());
    AppendPiece({region, offset, buffer.size()}, pieces);
  }
  return true;
}

Task<Status> ShmServerConnection::PutShared(uint64_t id, uint64_t offset, uint32_t length,
                                            std::string pieces) {
  PendingTransfer put;
  put.offset = offset;
  put.length = length;
  put.put = true;
  put.deadline = DeadlineAfter(clock().Now(), shm_options_.taking_timeout);
  CO_RETURN_IF_ERROR(AddTransfer(id, &put));
  watchdog_->Arm(put.deadline);
  FrameHeader header{FrameType::kSharedPut};
  header.call_id = id;
  header.offset = offset;
  header.payload_length = length;
  header.body_length = static_cast<uint32_t>(pieces.size());
  SendFrame(header, std::move(pieces));
  count().server_bytes_put.Add(length);
  // Set when the client has the bytes or, after the reader has stopped, by the connection's end.
  co_return co_await put.done.Wait();
}

Task<Status> ShmServerConnection::OnTaken(FrameHeader header) {
  CO_ASSIGN_OR_RETURN(PendingTransfer * put, FindTransfer(header, true));
  EndTransfer(header.call_id, put);
  co_return OkStatus();
}

// A client that does not copy keeps buffers from the others. Cut off, it cannot use what it copies too late:
// no reply reaches it any more.
Duration ShmServerConnection::Expire(Duration now) {
  const Duration first = FirstDeadline();
  if (first > now) return first;
  GetCounter("transport.shm.server.puts_not_taken").Add();
  Shutdown(ErrnoError(EPROTO, "it did not copy in time what was put"));
  return kNoDeadline;
}

void ShmServerConnection::OnClosed(const Status& why) {
  if (watchdog_ != nullptr) watchdog_->Stop();
  ServerConnection::OnClosed(why);
}

bool ShmServerConnection::ClientHasGone() const {
  pollfd state{fd_, POLLRDHUP, 0};
  return closing() || ::poll(&state, 1, 0) != 0;
}

ShmIncomingCall::ShmIncomingCall(std::shared_ptr<ShmServerConnection> connection, const FrameHeader& header,
                                 std::string body, std::unique_ptr<std::byte[]> eager,
                                 std::vector<iovec> source)
    : TcpIncomingCall(connection, header, std::move(body), std::move(eager)),
      connection_(std::move(connection)),
      source_(std::move(source)) {}

Task<Status> ShmIncomingCall::Put(uint64_t memory_offset,
                                  std::span<const std::span<const std::byte>> buffers) {
  const uint64_t length = TotalSize(buffers);
  std::string pieces;
  if (replied() || length < kMinShared || length > kMaxPayload || !connection_->Locate(buffers, &pieces)) {
    co_return co_await TcpIncomingCall::Put(memory_offset, buffers);
  }
  CO_RETURN_IF_ERROR(
      CheckTransfer(CallMemory::kPutTarget, memory_kind(), memory_size(), memory_offset, length));
  co_return co_await connection_->PutShared(id(), memory_offset, static_cast<uint32_t>(length),
                                            std::move(pieces));
}

Task<Status> ShmIncomingCall::Get(uint64_t memory_offset, std::span<const std::span<std::byte>> buffers) {
  if (replied() || source_.empty()) co_return co_await TcpIncomingCall::Get(memory_offset, buffers);
  const uint64_t length = TotalSize(buffers);
  CO_RETURN_IF_ERROR(
      CheckTransfer(CallMemory::kGetSource, memory_kind(), memory_size(), memory_offset, length));
  absl::InlinedVector<iovec, 8> to;
  for (const std::span<std::byte>& buffer : buffers) to.push_back(ToIovec(buffer));
  CopyPieces(to, From(source_, memory_offset));
  // A client hangs up before it uses the memory of a call that it has given up: if it has not by now, these
  // are the bytes of this call.
  if (connection_->ClientHasGone()) co_return ErrnoError(ECONNRESET, "the caller is gone");
  connection_->CountGot(length);
  co_return OkStatus();
}

}  // namespace nacre::shm
