#include "transport/shm/shm_client.h"

#include <absl/container/inlined_vector.h>
#include <absl/strings/str_format.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "common/log.h"
#include "transport/memory_device.h"
#include "transport/shm/peer_process.h"
#include "transport/shm/setup.h"
#include "transport/shm/shm_counters.h"

namespace nacre::shm {
namespace {

constexpr size_t kMaxCopies = 8;           // puts that are copied together
constexpr uint64_t kMostCopied = 8 << 20;  // bytes of these, unless one is longer: others wait meanwhile
constexpr size_t kMaxGathered = 2 * kMaxCopies;  // writes that leave together

void AppendTakenFrame(FrameHeader put, std::string* out) {
  put.type = FrameType::kTaken;
  put.body_length = 0;
  std::array<std::byte, kFrameHeaderSize> frame;
  EncodeFrameHeader(put, frame.data());
  out->append(reinterpret_cast<const char*>(frame.data()), frame.size());
}

// An error of the connection's making with the address, of the same kind.
Status CannotUse(const std::string& address, const Status& why) {
  const std::string text = absl::StrFormat("cannot use %s: %s", address, why.message());
  return IsRetryable(why) ? Status(absl::UnavailableError(text)) : ErrnoError(ToErrno(why), text);
}

Task<StatusOr<std::shared_ptr<ClientConnection>>> ConnectAndGreet(Executor executor, Clock& clock,
                                                                  TcpOptions options, std::string address,
                                                                  std::shared_ptr<ShmMemory> memory) {
  const Duration timeout = options.connect_timeout;
  CO_ASSIGN_OR_RETURN(StreamSocket socket, co_await Dial(executor, clock, address, timeout));
  // A server of another user is not shown this process's memory: it gets its bytes through the socket.
  const Status trusted = CheckUser(socket.native_handle());
  Shown shown;
  if (trusted.ok()) shown = memory->Snapshot();
  if (!trusted.ok()) LogInfo("data plane: %s is shown no memory: %s", address, trusted.message());
  Status status = SendSetup(socket.native_handle(), shown);
  if (!status.ok()) co_return CannotUse(address, status);
  auto connection = std::make_shared<ShmClientConnection>(std::move(socket), address, clock,
                                                          std::move(memory), std::move(shown));
  std::string identity = options.identity;
  status = co_await connection->Greet(std::move(identity), timeout);
  if (!status.ok()) co_return CannotUse(address, status);
  Counters().client_connections.Add();
  co_return connection;
}

// Puts of one connection that wait for their copy, or for the socket to take the word of it, each with what
// has to be kept for it. Twice what a server may have shown at once.
constexpr size_t kMostUntold = 4096;

}  // namespace

ShmClientConnection::ShmClientConnection(StreamSocket socket, std::string address, Clock& clock,
                                         std::shared_ptr<ShmMemory> memory, Shown shown)
    : ClientConnection(std::move(socket), std::move(address), clock, Counters()),
      memory_(std::move(memory)),
      shown_(std::move(shown)) {}

Task<Status> ShmClientConnection::Prepare() {
  CO_ASSIGN_OR_RETURN(views_, co_await ReceiveSetup(socket(), memory_.get()));
  pins_ = memory_->Pins(views_);
  co_return OkStatus();
}

Task<Status> ShmClientConnection::OnFrame(FrameHeader header) {
  if (header.type == FrameType::kSharedPut) return OnSharedPut(header);
  if (header.type == FrameType::kReply) ++replies_;
  return ClientConnection::OnFrame(header);
}

Task<Status> ShmClientConnection::OnSharedPut(FrameHeader header) {
  CO_ASSIGN_OR_RETURN(const std::string body, co_await ReadBody(header.body_length));
  CO_ASSIGN_OR_RETURN(std::shared_ptr<ClientCall> call, Find(header, CallMemory::kPutTarget));
  CO_ASSIGN_OR_RETURN(Pieces from, ParsePieces(body, views_, header.payload_length));
  std::shared_ptr<void> untold = CountUntold();
  if (untold == nullptr) co_return ErrnoError(EPROTO, "it shows on and does not hear what has been taken");
  count().client_bytes_put.Add(header.payload_length);
  if (call->memory.device() != nullptr) {
    if (!call->result.BeginCopy()) co_return ErrnoError(EPROTO, "a put for a call that is over");
    auto self = std::static_pointer_cast<ShmClientConnection>(shared_from_this());
    Spawn(executor(),
          CopyToDevice(std::move(self), header, std::move(call), std::move(from), std::move(untold)));
    co_return OkStatus();
  }
  const bool full = copies_.size() == kMaxCopies || to_copy_ + header.payload_length > kMostCopied;
  if (full && !copies_.empty()) {
    CO_RETURN_IF_ERROR(CopyAll());
    co_await Yield();  // others' turn: what they send leaves with it
  }
  if (!Hold(call)) co_return ErrnoError(EPROTO, "a put for a call that has been replied to");
  to_copy_ += header.payload_length;
  copies_.push_back({header, std::move(call), std::move(from), std::move(untold)});
  co_return OkStatus();
}

std::shared_ptr<void> ShmClientConnection::CountUntold() {
  if (untold_->fetch_add(1) >= kMostUntold) {
    untold_->fetch_sub(1);
    return nullptr;
  }
  return {untold_.get(), [untold = untold_](void*) { untold->fetch_sub(1); }};
}

void ShmClientConnection::OnClosed(const Status& why) {
  copies_.clear();
  ClientConnection::OnClosed(why);
}

Task<void> ShmClientConnection::CopyToDevice(std::shared_ptr<ShmClientConnection> self, FrameHeader header,
                                             std::shared_ptr<ClientCall> call, Pieces pieces,
                                             std::shared_ptr<void> untold) {
  const std::shared_ptr<MemoryDevice>& device = call->memory.spans().front().region->device();
  if (!self->pins_->ArePinned(device.get(), pieces)) co_await ViewPins::Pin(self->pins_, device, pieces);
  std::vector<iovec> from(pieces.begin(), pieces.end());
  Status copied = co_await nacre::CopyToDevice(call->memory, header.offset, std::move(from), call->sums);
  copied.Update(self->StillLent());
  std::string taken;
  AppendTakenFrame(header, &taken);
  self->writer().Gather(kMaxGathered);  // others mostly end with it
  self->SendBytes(std::move(taken), std::move(untold));
  call->result.EndCopy(copied);
}

// Bytes that the server puts stay in place until it hangs up. If it has not done so after a copy, the bytes
// are good.
Status ShmClientConnection::StillLent() const {
  return HasHungUp() ? ErrnoError(ECONNRESET, "the server has hung up") : OkStatus();
}

// One message for several puts, and for the calls that follow upon their replies: each one wakes the server,
// which takes as long as to copy a quarter of a MiB.
Status ShmClientConnection::CopyAll() {
  for (const Copy& copy : copies_) {
    absl::InlinedVector<iovec, 8> to;
    copy.call->memory.AppendPieces(copy.header.offset, copy.header.payload_length, &to);
    CopyPieces(to, copy.from);
  }
  std::string taken;
  taken.reserve(copies_.size() * kFrameHeaderSize);
  std::array<std::shared_ptr<void>, kMaxCopies> untold;
  for (size_t i = 0; i < copies_.size(); ++i) {
    AppendTakenFrame(copies_[i].header, &taken);
    untold[i] = std::move(copies_[i].untold);
  }
  if (!copies_.empty()) RETURN_IF_ERROR(StillLent());
  for (const Copy& copy : copies_) Drop(copy.call);
  copies_.clear();
  to_copy_ = 0;
  if (std::exchange(replies_, 0) > 1 || !taken.empty()) writer().Gather(kMaxGathered);
  if (!taken.empty()) SendBytes(std::move(taken), std::make_shared<decltype(untold)>(std::move(untold)));
  return OkStatus();
}

bool ShmClientConnection::ShowSource(const ClientCall& call, std::string* pieces) {
  const std::vector<MemorySpan>& spans = call.memory.spans();
  if (shown_.empty() || call.memory.size() < kMinShared || spans.size() > kMaxSharedPieces) return false;
  std::string text;
  for (const MemorySpan& span : spans) {
    auto* region = dynamic_cast<const ShmRegion*>(span.region.get());
    if (region == nullptr) return false;
    const auto found = std::find(shown_.begin(), shown_.end(), region->memory());
    if (found == shown_.end()) return false;  // registered later than this connection was made
    AppendPiece({static_cast<uint32_t>(found - shown_.begin()), span.offset, span.length}, &text);
  }
  *pieces = CountedPieces(text);
  count().client_bytes_got.Add(static_cast<int64_t>(call.memory.size()));
  return true;
}

StreamKind ShmKind(std::shared_ptr<ShmMemory> memory) {
  auto connect = [memory = std::move(memory)](Executor executor, Clock& clock, TcpOptions options,
                                              std::string address) {
    return ConnectAndGreet(std::move(executor), clock, std::move(options), std::move(address), memory);
  };
  return {"shm", true, kMinShared - 1, std::move(connect)};  // what is longer does not go through the socket
}

}  // namespace nacre::shm
