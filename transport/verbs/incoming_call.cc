#include "transport/verbs/incoming_call.h"

#include <absl/container/inlined_vector.h>
#include <absl/strings/str_format.h>

#include <algorithm>
#include <utility>

#include "common/metrics.h"
#include "transport/memory.h"

namespace nacre::verbs {
namespace {

constexpr uint32_t kMaxPart = 1 << 20;  // of one work request, so that others get their turn

struct Counters {
  Counter& bytes_put = GetCounter("transport.verbs.server.bytes_put");
  Counter& bytes_got = GetCounter("transport.verbs.server.bytes_got");
  Counter& bytes_staged = GetCounter("transport.verbs.server.bytes_staged");
};

Counters& Count() {
  static Counters counters;
  return counters;
}

std::shared_ptr<void> Both(std::shared_ptr<void> one, std::shared_ptr<void> other) {
  if (one == nullptr) return other;
  return std::make_shared<std::pair<std::shared_ptr<void>, std::shared_ptr<void>>>(std::move(one),
                                                                                   std::move(other));
}

Status AlreadyReplied() { return absl::FailedPreconditionError("the call has been replied to"); }

}  // namespace

VerbsIncomingCall::VerbsIncomingCall(std::shared_ptr<ServerLink> link, uint64_t id, CallMessage call)
    : link_(std::move(link)),
      id_(id),
      kind_(call.kind),
      with_reply_(call.with_reply),
      memory_(std::move(call.memory)),
      body_(std::move(call.body)) {}

VerbsIncomingCall::~VerbsIncomingCall() {
  if (replied_) return;
  link_->RemoveCall(id_);
  const bool overtakes =
      std::any_of(lent_.begin(), lent_.end(), [](const auto& lent) { return !lent.IsSet(); });
  if (overtakes) link_->Shutdown(absl::InternalError("a handler ended without a reply"));
  link_->Send(FragmentKind::kReply, kReplyFailed, id_, "the server's handler ended without a reply");
}

// The first `length` bytes of a list of buffers, which lose them.
absl::InlinedVector<iovec, 8> VerbsIncomingCall::TakeFront(Buffers* buffers, uint64_t length) {
  absl::InlinedVector<iovec, 8> pieces;
  size_t empty = 0;
  for (std::span<std::byte>& buffer : *buffers) {
    const size_t take = std::min<uint64_t>(buffer.size(), length);
    if (take > 0) pieces.push_back({buffer.data(), take});
    buffer = buffer.subspan(take);
    length -= take;
    if (!buffer.empty()) break;
    ++empty;
  }
  buffers->erase(buffers->begin(), buffers->begin() + static_cast<ptrdiff_t>(empty));
  return pieces;
}

VerbsIncomingCall::Buffers VerbsIncomingCall::Sources(std::span<const std::span<const std::byte>> buffers) {
  Buffers sources;
  for (const auto& buffer : buffers) {
    if (!buffer.empty()) sources.emplace_back(const_cast<std::byte*>(buffer.data()), buffer.size());
  }
  return sources;
}

Task<Status> VerbsIncomingCall::Put(uint64_t memory_offset,
                                    std::span<const std::span<const std::byte>> buffers) {
  const uint64_t length = TotalSize(buffers);
  CO_RETURN_IF_ERROR(CheckTransfer(CallMemory::kPutTarget, kind_, memory_.size(), memory_offset, length));
  Count().bytes_put.Add(static_cast<int64_t>(length));
  Buffers sources = Sources(buffers);
  if (!with_reply_) co_return co_await Move(IBV_WR_RDMA_WRITE, memory_offset, std::move(sources));
  if (replied_) co_return AlreadyReplied();
  auto copy = std::make_shared<std::vector<std::byte>>();
  for (const auto& source : sources) copy->insert(copy->end(), source.begin(), source.end());
  copied_ = true;
  const LocalPieces whole(1, LocalPiece{copy->data(), copy->size(), 0});
  PutWithReply(memory_offset, whole, std::move(copy));
  co_return OkStatus();
}

void VerbsIncomingCall::PutWithReply(uint64_t offset, const LocalPieces& pieces, std::shared_ptr<void> keep) {
  uint32_t length = 0;
  for (const LocalPiece& piece : pieces) {
    const auto size = static_cast<uint32_t>(piece.length);
    data_.pieces.push_back({reinterpret_cast<uint64_t>(piece.data), size, piece.key});
    length += size;
  }
  data_.bytes += length;
  data_.keep = Both(std::move(data_.keep), std::move(keep));
  const bool adjacent = !ranges_.empty() && ranges_.back().offset + ranges_.back().length == offset;
  if (!adjacent) ranges_.push_back({static_cast<uint32_t>(offset), 0});
  ranges_.back().length += length;
}

Task<Status> VerbsIncomingCall::Lend(uint64_t memory_offset,
                                     std::span<const std::span<const std::byte>> buffers,
                                     std::shared_ptr<void> keep) {
  LocalPieces local;
  const bool in_order = with_reply_ || ServerLink::keeps_order();
  if (replied_ || !in_order || !FindKeys(Sources(buffers), &local)) {
    co_return co_await Put(memory_offset, buffers);
  }
  const uint64_t length = TotalSize(buffers);
  CO_RETURN_IF_ERROR(CheckTransfer(CallMemory::kPutTarget, kind_, memory_.size(), memory_offset, length));
  Count().bytes_put.Add(static_cast<int64_t>(length));
  if (with_reply_) {
    PutWithReply(memory_offset, local, std::move(keep));
    co_return OkStatus();
  }
  auto transfer = std::make_unique<Transfer>();
  transfer->parts = Cut(memory_offset, local);
  OneShot<Unit> posted = link_->Lend(std::move(transfer), std::move(keep));
  if (!posted.IsSet()) lent_.push_back(std::move(posted));
  co_return OkStatus();
}

Task<Status> VerbsIncomingCall::Get(uint64_t memory_offset, std::span<const std::span<std::byte>> buffers) {
  const uint64_t length = TotalSize(buffers);
  CO_RETURN_IF_ERROR(CheckTransfer(CallMemory::kGetSource, kind_, memory_.size(), memory_offset, length));
  Count().bytes_got.Add(static_cast<int64_t>(length));
  Buffers targets;
  for (const auto& buffer : buffers) {
    if (!buffer.empty()) targets.push_back(buffer);
  }
  co_return co_await Move(IBV_WR_RDMA_READ, memory_offset, std::move(targets));
}

Task<Status> VerbsIncomingCall::Move(ibv_wr_opcode opcode, uint64_t offset, Buffers buffers) {
  if (replied_) co_return AlreadyReplied();
  LocalPieces local;
  if (FindKeys(buffers, &local)) co_return co_await Run(opcode, offset, std::move(local));
  co_return co_await MoveStaged(opcode, offset, std::move(buffers));
}

// False: not all of them are registered.
bool VerbsIncomingCall::FindKeys(const Buffers& buffers, LocalPieces* pieces) {
  pieces->reserve(buffers.size());
  for (const auto& buffer : buffers) {
    StatusOr<MemoryKeys> keys = link_->regions().Find(link_->rail().domain(), buffer.data(), buffer.size());
    if (!keys.ok()) return false;
    pieces->push_back({buffer.data(), buffer.size(), keys->local});
  }
  return true;
}

std::vector<TransferPart> VerbsIncomingCall::Cut(uint64_t offset, const LocalPieces& local) const {
  uint64_t length = 0;
  for (const LocalPiece& piece : local) length += piece.length;
  const TransferLimits limits{std::min(kMaxPart, link_->rail().port().max_message), link_->max_pieces()};
  return PlanTransfer(memory_.Pieces(offset, length), local, limits);
}

Task<Status> VerbsIncomingCall::Run(ibv_wr_opcode opcode, uint64_t offset, LocalPieces local) {
  Transfer transfer;
  transfer.opcode = opcode;
  transfer.parts = Cut(offset, local);
  co_return co_await link_->Run(&transfer);
}

Task<Status> VerbsIncomingCall::MoveStaged(ibv_wr_opcode opcode, uint64_t offset, Buffers buffers) {
  const bool write = opcode == IBV_WR_RDMA_WRITE;
  CO_ASSIGN_OR_RETURN(Staging::Chunk chunk, co_await link_->rail().staging().Take());
  while (!buffers.empty()) {
    auto pieces = TakeFront(&buffers, Staging::kChunkSize);
    uint64_t length = 0;
    for (const iovec& piece : pieces) length += piece.iov_len;
    const iovec staged{chunk.data(), length};
    if (write) CopyPieces(std::span(&staged, 1), pieces);
    LocalPieces local(1, LocalPiece{chunk.data(), length, chunk.local_key()});
    CO_RETURN_IF_ERROR(co_await Run(opcode, offset, std::move(local)));
    if (!write) CopyPieces(pieces, std::span(&staged, 1));
    Count().bytes_staged.Add(static_cast<int64_t>(length));
    offset += length;
  }
  co_return OkStatus();
}

Task<Status> VerbsIncomingCall::Reply(std::string body) {
  if (body.size() > kMaxBodySize) {
    co_return ErrnoError(EINVAL, absl::StrFormat("a reply of %d bytes is larger than the limit of %d",
                                                 body.size(), kMaxBodySize));
  }
  if (std::exchange(replied_, true)) co_return AlreadyReplied();
  for (const OneShot<Unit>& lent : lent_) co_await lent.Wait();
  link_->RemoveCall(id_);
  uint8_t flags = 0;
  Trailer data;
  if (!ranges_.empty()) {
    flags = kReplyData;
    CO_RETURN_IF_ERROR(AddData(&body, &data));
  }
  if (link_->Send(FragmentKind::kReply, flags, id_, std::move(body), {}, std::move(data)))
    co_return OkStatus();
  co_return ErrnoError(ECONNRESET, "the caller is gone");
}

// Makes a reply's body a message with what was put, as much of it as possible in the trailer.
Status VerbsIncomingCall::AddData(std::string* body, Trailer* trailer) {
  std::string message = EncodeDataReply(ranges_, *body);
  if (!copied_ && link_->Fits(message.size(), data_)) {
    *trailer = std::move(data_);
  } else {
    for (const ibv_sge& piece : data_.pieces) {
      message.append(reinterpret_cast<const char*>(piece.addr), piece.length);
    }
  }
  *body = std::move(message);
  if (body->size() <= kMaxMessageSize) return OkStatus();
  return ErrnoError(EINVAL,
                    absl::StrFormat("a reply of %d bytes with its data is larger than the limit of %d",
                                    body->size(), kMaxMessageSize));
}

}  // namespace nacre::verbs
