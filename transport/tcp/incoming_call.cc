#include "transport/tcp/incoming_call.h"

#include <absl/container/inlined_vector.h>
#include <absl/strings/str_format.h>

#include <algorithm>

#include "transport/memory.h"

namespace nacre {
namespace {

// Puts up to so many bytes in all are copied and leave with the reply: cheaper than a system call and a
// wake-up of the client for themselves.
constexpr size_t kMaxKept = 32 << 10;

// Hands out a list of buffers piece by piece.
template <typename Byte>
class BufferCursor {
 public:
  explicit BufferCursor(std::span<const std::span<Byte>> buffers) : buffers_(buffers) {}

  template <typename Container>
  void Take(uint64_t length, Container* pieces) {
    while (length > 0) {
      const std::span<Byte> rest = buffers_[next_].subspan(done_);
      const size_t take = std::min<uint64_t>(rest.size(), length);
      if (take > 0) pieces->push_back(ToIovec(rest.first(take)));
      length -= take;
      done_ += take;
      if (done_ == buffers_[next_].size()) ++next_, done_ = 0;
    }
  }

 private:
  std::span<const std::span<Byte>> buffers_;
  size_t next_ = 0, done_ = 0;
};

FrameHeader TransferHeader(FrameType type, uint64_t id, uint64_t offset, uint32_t length) {
  FrameHeader header{type};
  header.call_id = id;
  header.offset = offset;
  header.payload_length = length;
  return header;
}

FrameHeader ReplyHeader(uint64_t id, const std::string& body, uint8_t flags) {
  FrameHeader header{FrameType::kReply, flags, id};
  header.body_length = static_cast<uint32_t>(body.size());
  return header;
}

}  // namespace

// Lets the connection know that somebody waits for the socket.
class PutWrite : public AwaitedWrite {
 public:
  explicit PutWrite(ServerConnection* connection) : connection_(connection) {}

 protected:
  void Queued() override { connection_->CountWaiting(ServerConnection::kToClient, 1); }
  void Done(const Status& status) override {
    connection_->CountWaiting(ServerConnection::kToClient, -1);
    AwaitedWrite::Done(status);
  }

 private:
  ServerConnection* const connection_;
};

// And how many replies do.
class ReplyWrite : public PutWrite {
 public:
  explicit ReplyWrite(ServerConnection* connection) : PutWrite(connection), connection_(connection) {}

 protected:
  void Queued() override {
    connection_->CountUnsentReply(1);
    PutWrite::Queued();
  }
  void Done(const Status& status) override {
    connection_->CountUnsentReply(-1);
    PutWrite::Done(status);
  }

 private:
  ServerConnection* const connection_;
};

TcpIncomingCall::TcpIncomingCall(std::shared_ptr<ServerConnection> connection, const FrameHeader& header,
                                 std::string body, std::unique_ptr<std::byte[]> eager)
    : connection_(std::move(connection)),
      id_(header.call_id),
      kind_(static_cast<CallMemory>(header.flags)),
      memory_size_(header.offset),
      body_(std::move(body)),
      eager_(std::move(eager)) {}

TcpIncomingCall::~TcpIncomingCall() {
  if (replied_) return;
  connection_->RemoveCall(id_);
  std::string text = "the server's handler ended without a reply";
  if (!kept_.empty()) connection_->SendBytes(std::move(kept_));
  const FrameHeader header = ReplyHeader(id_, text, kFrameFailed);
  connection_->SendFrame(header, std::move(text));
}

void TcpIncomingCall::KeepPut(uint64_t offset, uint64_t length,
                              std::span<const std::span<const std::byte>> buffers) {
  std::array<std::byte, kFrameHeaderSize> header;
  EncodeFrameHeader(TransferHeader(FrameType::kPut, id_, offset, static_cast<uint32_t>(length)),
                    header.data());
  kept_.append(reinterpret_cast<const char*>(header.data()), header.size());
  for (const auto& buffer : buffers)
    kept_.append(reinterpret_cast<const char*>(buffer.data()), buffer.size());
}

Task<Status> TcpIncomingCall::Put(uint64_t memory_offset,
                                  std::span<const std::span<const std::byte>> buffers) {
  uint64_t length = TotalSize(buffers);
  CO_RETURN_IF_ERROR(CheckTransfer(CallMemory::kPutTarget, kind_, memory_size_, memory_offset, length));
  if (replied_) co_return absl::FailedPreconditionError("the call has been replied to");
  if (length == 0) co_return OkStatus();
  connection_->count().server_bytes_put.Add(static_cast<int64_t>(length));
  if (kept_.size() + length <= kMaxKept) {
    if (connection_->closing()) co_return ErrnoError(ECONNRESET, "the caller is gone");
    KeepPut(memory_offset, length, buffers);
    co_return OkStatus();
  }
  BufferCursor<const std::byte> cursor(buffers);
  while (length > 0) {
    const auto part = static_cast<uint32_t>(std::min<uint64_t>(length, kMaxPayload));
    PutWrite write(connection_.get());
    if (!kept_.empty()) write.pieces.push_back({kept_.data(), kept_.size()});
    write.SetHeader(TransferHeader(FrameType::kPut, id_, memory_offset, part));
    cursor.Take(part, &write.pieces);
    CO_RETURN_IF_ERROR(co_await connection_->Send(write));
    kept_.clear();
    memory_offset += part;
    length -= part;
  }
  co_return OkStatus();
}

Task<Status> TcpIncomingCall::Get(uint64_t memory_offset, std::span<const std::span<std::byte>> buffers) {
  uint64_t length = TotalSize(buffers);
  CO_RETURN_IF_ERROR(CheckTransfer(CallMemory::kGetSource, kind_, memory_size_, memory_offset, length));
  if (replied_) co_return absl::FailedPreconditionError("the call has been replied to");
  connection_->count().server_bytes_got.Add(static_cast<int64_t>(length));
  BufferCursor<std::byte> cursor(buffers);
  while (length > 0) {
    const auto part = static_cast<uint32_t>(std::min<uint64_t>(length, kMaxPayload));
    absl::InlinedVector<iovec, 8> pieces;
    cursor.Take(part, &pieces);
    if (eager_ != nullptr) {
      const iovec from{eager_.get() + memory_offset, part};
      CopyPieces(pieces, std::span(&from, 1));
    } else {
      CO_RETURN_IF_ERROR(co_await GetPieces(memory_offset, part, std::span(pieces.data(), pieces.size())));
    }
    memory_offset += part;
    length -= part;
  }
  co_return OkStatus();
}

Task<Status> TcpIncomingCall::GetPieces(uint64_t offset, uint32_t length, std::span<iovec> pieces) {
  ServerConnection::PendingTransfer get{offset, length, pieces};
  CO_RETURN_IF_ERROR(connection_->AddTransfer(id_, &get));
  connection_->CountWaiting(ServerConnection::kFromClient, 1);
  connection_->SendFrame(TransferHeader(FrameType::kGet, id_, offset, length), std::string());
  // Set by the data's arrival or, after the reader has stopped, by the connection's end.
  Status status = co_await get.done.Wait();
  connection_->CountWaiting(ServerConnection::kFromClient, -1);
  co_return status;
}

Task<Status> TcpIncomingCall::Reply(std::string body) {
  if (body.size() > kMaxBodySize) {
    co_return ErrnoError(EINVAL, absl::StrFormat("a reply of %d bytes is larger than the limit of %d",
                                                 body.size(), kMaxBodySize));
  }
  if (std::exchange(replied_, true)) co_return absl::FailedPreconditionError("the call has been replied to");
  connection_->RemoveCall(id_);
  ReplyWrite write(connection_.get());
  if (!kept_.empty()) write.pieces.push_back({kept_.data(), kept_.size()});
  write.SetHeader(ReplyHeader(id_, body, 0));
  write.pieces.push_back({body.data(), body.size()});
  co_return co_await connection_->Send(write);
}

}  // namespace nacre
