#include "transport/shm/shm_server.h"

#include <absl/container/inlined_vector.h>
#include <absl/strings/str_format.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "common/log.h"
#include "common/metrics.h"
#include "transport/memory.h"
#include "transport/shm/peer_process.h"
#include "transport/shm/setup.h"
#include "transport/shm/shm_counters.h"

namespace nacre::shm {
namespace {

// As much may a client have been shown and not taken for each call it may have under way; it says that it has
// taken something a moment after.
constexpr size_t kLentForEachCall = 8;

constexpr size_t kMostReplies = 8;  // replies that leave together
// Lends that are shown as one: as much as a device copies in a tenth of a millisecond.
constexpr uint64_t kMostGatheredBytes = 4 << 20;

// The part of the pieces from `offset` on.
Pieces From(std::span<const iovec> pieces, uint64_t offset) {
  while (!pieces.empty() && offset >= pieces.front().iov_len) {
    offset -= pieces.front().iov_len;
    pieces = pieces.subspan(1);
  }
  Pieces rest(pieces.begin(), pieces.end());
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
      shm_options_(shm_options) {}

Task<Status> ShmServerConnection::Prepare() {
  // A client that sees an object server's pool can read what any file holds.
  if (Status user = CheckMayTrace(fd()); !user.ok()) {
    LogWarning("data plane: refused to show memory: %s", user.message());
    count().server_refused.Add();
    CO_RETURN_IF_ERROR(SendRefusal(fd()));
    co_return absl::CancelledError("refused");
  }
  auto expire = [weak = std::weak_ptr(std::static_pointer_cast<ShmServerConnection>(shared_from_this()))](
                    Duration now) {
    auto self = weak.lock();
    return self == nullptr ? kNoDeadline : self->Expire(now);
  };
  watchdog_ = std::make_shared<Watchdog>(executor(), clock(), std::move(expire));
  shown_ = memory_->Snapshot();
  CO_RETURN_IF_ERROR(SendSetup(fd(), shown_));
  CO_ASSIGN_OR_RETURN(views_, co_await ReceiveSetup(socket(), memory_.get()));
  co_return OkStatus();
}

Task<Status> ShmServerConnection::OnFrame(FrameHeader header) {
  // Answers to calls that came together are told together: each message may wake the client.
  const size_t rest = header.body_length + (header.type == FrameType::kTaken ? 0 : header.payload_length);
  if (reader().buffered().size() > rest) writer().Gather(kMostReplies);
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
  Pieces source;
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

StatusOr<std::string> ShmServerConnection::Announce(uint64_t id, uint64_t offset, Lent lent,
                                                    std::string pieces) {
  const uint32_t length = lent.length;
  {
    std::lock_guard lock(mutex_);
    if (closed_) return ErrnoError(ECONNRESET, "the caller is gone");
    if (lent_.size() >= kLentForEachCall * calls_at_once()) return std::string();
    if (!lent_.emplace(std::pair(id, offset), std::move(lent)).second) return std::string();
  }
  count().server_bytes_put.Add(length);
  FrameHeader header{FrameType::kSharedPut};
  header.call_id = id;
  header.offset = offset;
  header.payload_length = length;
  header.body_length = static_cast<uint32_t>(pieces.size());
  std::array<std::byte, kFrameHeaderSize> frame;
  EncodeFrameHeader(header, frame.data());
  pieces.insert(0, reinterpret_cast<const char*>(frame.data()), frame.size());
  return pieces;
}

void ShmServerConnection::Told(uint64_t id) {
  const Duration deadline = DeadlineAfter(clock().Now(), shm_options_.taking_timeout);
  {
    std::lock_guard lock(mutex_);
    for (auto lent = lent_.lower_bound({id, 0}); lent != lent_.end() && lent->first.first == id; ++lent)
      lent->second.deadline = std::min(lent->second.deadline, deadline);
  }
  watchdog_->Arm(deadline);
}

Task<Status> ShmServerConnection::OnTaken(FrameHeader header) {
  Lent taken;
  {
    std::lock_guard lock(mutex_);
    const auto found = lent_.find({header.call_id, header.offset});
    if (found == lent_.end() || found->second.length != header.payload_length) {
      co_return ErrnoError(EPROTO, absl::StrFormat("%d bytes at %d of call %#x taken, which were not there",
                                                   header.payload_length, header.offset, header.call_id));
    }
    taken = std::move(found->second);
    lent_.erase(found);
  }
  taken.over.Set(OkStatus());
  co_return OkStatus();
}

// A client that does not copy keeps buffers from the others. Cut off, it does not use what it copies too
// late: it looks, after each copy, whether it has been.
Duration ShmServerConnection::Expire(Duration now) {
  Duration first = kNoDeadline;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [place, lent] : lent_) first = std::min(first, lent.deadline);
  }
  if (first > now) return first;
  GetCounter("transport.shm.server.puts_not_taken").Add();
  Shutdown(ErrnoError(EPROTO, "it did not copy in time what was put"));
  return kNoDeadline;
}

void ShmServerConnection::OnClosed(const Status& why) {
  if (watchdog_ != nullptr) watchdog_->Stop();
  decltype(lent_) lent;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    lent.swap(lent_);
  }
  const Status gone = ErrnoError(ECONNRESET, absl::StrFormat("the caller is gone: %s", why.message()));
  for (auto& [place, one] : lent) one.over.Set(gone);
  ServerConnection::OnClosed(why);
}

ShmIncomingCall::ShmIncomingCall(std::shared_ptr<ShmServerConnection> connection, const FrameHeader& header,
                                 std::string body, std::unique_ptr<std::byte[]> eager, Pieces source)
    : TcpIncomingCall(connection, header, std::move(body), std::move(eager)),
      connection_(std::move(connection)),
      source_(std::move(source)) {}

StatusOr<std::string> ShmIncomingCall::Show(uint64_t memory_offset,
                                            std::span<const std::span<const std::byte>> buffers,
                                            ShmServerConnection::Lent lent) {
  const uint64_t length = TotalSize(buffers);
  std::string pieces;
  if (replied() || length < kMinShared || length > kMaxPayload || !connection_->Locate(buffers, &pieces))
    return std::string();
  RETURN_IF_ERROR(CheckTransfer(CallMemory::kPutTarget, memory_kind(), memory_size(), memory_offset, length));
  lent.length = static_cast<uint32_t>(length);
  return connection_->Announce(id(), memory_offset, std::move(lent), std::move(pieces));
}

Task<Status> ShmIncomingCall::Put(uint64_t memory_offset,
                                  std::span<const std::span<const std::byte>> buffers) {
  ShmServerConnection::Lent lent;
  const OneShot<Status> over = lent.over;
  CO_ASSIGN_OR_RETURN(std::string frame, Show(memory_offset, buffers, std::move(lent)));
  if (frame.empty()) co_return co_await TcpIncomingCall::Put(memory_offset, buffers);
  connection_->Told(id());
  connection_->SendNow(std::move(frame));
  co_return co_await over.Wait();
}

Task<Status> ShmIncomingCall::Lend(uint64_t memory_offset,
                                   std::span<const std::span<const std::byte>> buffers,
                                   std::shared_ptr<void> keep) {
  if (replied()) co_return co_await LendAll(memory_offset, buffers, std::move(keep));
  const uint64_t length = TotalSize(buffers);
  CO_RETURN_IF_ERROR(
      CheckTransfer(CallMemory::kPutTarget, memory_kind(), memory_size(), memory_offset, length));
  if (!MayGather(memory_offset, length, buffers.size())) CO_RETURN_IF_ERROR(co_await LendGathered());
  if (gathered_.buffers.empty()) gathered_.offset = memory_offset;
  gathered_.length += length;
  gathered_.buffers.insert(gathered_.buffers.end(), buffers.begin(), buffers.end());
  gathered_.keep.push_back(std::move(keep));
  co_return OkStatus();
}

bool ShmIncomingCall::MayGather(uint64_t memory_offset, uint64_t length, size_t buffers) const {
  return memory_offset == gathered_.offset + gathered_.length &&
         gathered_.length + length <= kMostGatheredBytes &&
         gathered_.buffers.size() + buffers <= kMaxSharedPieces;
}

Task<Status> ShmIncomingCall::LendGathered() {
  if (gathered_.buffers.empty()) co_return OkStatus();
  Gathered gathered = std::exchange(gathered_, {});
  auto keep = std::make_shared<std::vector<std::shared_ptr<void>>>(std::move(gathered.keep));
  co_return co_await LendAll(gathered.offset, gathered.buffers, std::move(keep));
}

Task<Status> ShmIncomingCall::LendAll(uint64_t memory_offset,
                                      std::span<const std::span<const std::byte>> buffers,
                                      std::shared_ptr<void> keep) {
  ShmServerConnection::Lent lent;
  lent.keep = keep;
  CO_ASSIGN_OR_RETURN(const std::string frame, Show(memory_offset, buffers, std::move(lent)));
  if (frame.empty()) co_return co_await TcpIncomingCall::Put(memory_offset, buffers);
  KeepFrames(frame);
  lends_ = true;
  co_return OkStatus();
}

Task<Status> ShmIncomingCall::Reply(std::string body) {
  if (!replied()) CO_RETURN_IF_ERROR(co_await LendGathered());
  if (lends_) connection_->Told(id());
  co_return co_await TcpIncomingCall::Reply(std::move(body));
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
  if (connection_->HasHungUp()) co_return ErrnoError(ECONNRESET, "the caller is gone");
  connection_->CountGot(length);
  co_return OkStatus();
}

}  // namespace nacre::shm
