#include "transport/verbs/channel.h"

#include <absl/strings/str_format.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstring>

#include "common/metrics.h"
#include "common/random.h"

namespace nacre::verbs {
namespace {

constexpr uint32_t kSendsForMessages = 4;  // of kSends

struct Counters {
  Counter& fragments = GetCounter("transport.verbs.fragments_sent");
  Counter& credit_waits = GetCounter("transport.verbs.credit_waits");
  Counter& protocol_errors = GetCounter("transport.verbs.protocol_errors");
  Counter& lost_work = GetCounter("transport.verbs.connections_stuck");
  Counter& beyond_credits = GetCounter("transport.verbs.fragments_beyond_credits");
};

Counters& Count() {
  static Counters counters;
  return counters;
}

std::string_view AsText(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

Channel::Channel(std::shared_ptr<Rail> rail, Executor executor, Clock& clock, uint32_t calls,
                 int remote_access)
    : rail_(std::move(rail)),
      executor_(std::move(executor)),
      clock_(clock),
      calls_(calls),
      remote_access_(remote_access),
      sequence_(static_cast<uint32_t>(SystemRandom().Next() & 0xffffff)),
      slots_(kSends),
      progress_(clock.Now()),
      granted_(kCredits) {
  for (uint32_t i = kSends; i > 0; --i) free_slots_.push_back(i - 1);
}

Status Channel::Open() {
  ASSIGN_OR_RETURN(qp_, QueuePair::Make(*rail_, kSends + 1, sequence_, remote_access_));  // one for Drain
  number_ = qp_->number();
  local_ = qp_->local();
  local_.credits = kCredits;
  local_.calls = calls_;
  local_.receive = rail_->buffers().size();
  max_pieces_ = qp_->max_pieces();
  Status status = rail_->Join(number_, shared_from_this(), kCredits + kSpareReceives, kSends + 1);
  if (!status.ok()) qp_.reset();
  return status;
}

// The kernel may look for the other end's address for long: nothing is held meanwhile.
Status Channel::Join(const Endpoint& remote) {
  {
    std::lock_guard lock(mutex_);
    if (!why_.ok()) return absl::UnavailableError(why_.message());
    joining_ = true;
    remote_ = remote;
    credits_ = remote.credits;
  }
  Status status = qp_->Join(remote);
  {
    std::lock_guard lock(mutex_);
    joining_ = false;
    if (!why_.ok()) {
      Drain();
      return absl::UnavailableError(why_.message());
    }
    ready_ = status.ok();
    if (status.ok()) status = Pump();
  }
  if (!status.ok()) Shutdown(status);
  return status;
}

Task<Status> Channel::Run(Transfer* transfer) {
  auto self = shared_from_this();
  if (transfer->parts.empty()) co_return OkStatus();
  {
    std::lock_guard lock(mutex_);
    if (!why_.ok()) co_return absl::UnavailableError(why_.message());
    transfers_.push_back(transfer);
  }
  PumpOrShutdown();
  co_return co_await transfer->done.Wait();
}

OneShot<Unit> Channel::Lend(std::unique_ptr<Transfer> transfer, std::shared_ptr<void> keep) {
  OneShot<Unit> posted;
  Transfer* lent = transfer.get();
  lent->all_posted = posted;
  lent->keep = std::move(keep);
  lent->own = std::move(transfer);
  bool ended = lent->parts.empty();
  {
    std::lock_guard lock(mutex_);
    ended = ended || !why_.ok();
    if (!ended) transfers_.push_back(lent);
  }
  if (ended) {
    End(lent);
  } else {
    PumpOrShutdown();
  }
  return posted;
}

// With nothing held: what it keeps goes.
void Channel::End(Transfer* transfer) {
  const std::unique_ptr<Transfer> own = std::move(transfer->own);
  if (transfer->all_posted) transfer->all_posted->Set({});
  transfer->done.Set(transfer->status);
}

uint32_t Channel::most_payload() const {
  return std::min(remote_.receive, rail_->buffers().size()) - static_cast<uint32_t>(kFragmentHeaderSize);
}

bool Channel::Fits(size_t message, const Trailer& trailer) const {
  return message <= most_payload() && kFragmentHeaderSize + message + trailer.bytes <= remote_.receive &&
         trailer.pieces.size() < max_pieces_;
}

bool Channel::Send(FragmentKind kind, uint8_t flags, uint64_t call_id, std::string message,
                   std::vector<WindowBinding> windows, Trailer trailer) {
  FragmentHeader header;
  header.kind = kind;
  header.flags = flags;
  header.call_id = call_id;
  header.total = static_cast<uint32_t>(message.size()) + trailer.bytes;
  Outgoing outgoing{header, std::move(message), std::move(windows), std::move(trailer)};
  Status status;
  {
    std::lock_guard lock(mutex_);
    if (!why_.ok()) return false;
    if (credits_ == 0) Count().credit_waits.Add();
    if (messages_.empty()) status = SendOn(&outgoing);
    if (status.ok() && !outgoing.whole) messages_.push_back(std::move(outgoing));
  }
  if (!status.ok()) Shutdown(status);
  return true;
}

size_t Channel::queued_messages() {
  std::lock_guard lock(mutex_);
  return messages_.size();
}

void Channel::PumpOrShutdown() {
  Status status;
  {
    std::lock_guard lock(mutex_);
    status = Pump();
  }
  if (!status.ok()) Shutdown(status);
}

// Posts what may be posted: messages first, which are small and which others wait for.
Status Channel::Pump() {
  if (!why_.ok() || !ready_) return OkStatus();
  while (!messages_.empty()) {
    RETURN_IF_ERROR(SendOn(&messages_.front()));
    if (!messages_.front().whole) break;
    messages_.pop_front();
  }
  if (owed_ >= kCredits / 2 && !free_slots_.empty()) RETURN_IF_ERROR(SendCredit());
  while (!transfers_.empty() && free_slots_.size() > kSendsForMessages && TakeTurn(*transfers_.front())) {
    Transfer* transfer = transfers_.front();
    RETURN_IF_ERROR(PostPart(transfer));
    if (transfer->posted < transfer->parts.size()) continue;
    transfers_.pop_front();
    if (transfer->all_posted) transfer->all_posted->Set({});
  }
  return OkStatus();
}

bool Channel::HasWork() const { return !messages_.empty() || !transfers_.empty() || owed_ >= kCredits / 2; }

// As much of a message as may go now.
Status Channel::SendOn(Outgoing* message) {
  while (!message->whole && ready_ && credits_ > 0 && !free_slots_.empty()) {
    if (message->bound < message->windows.size()) {
      RETURN_IF_ERROR(PostBinding(message));
    } else {
      RETURN_IF_ERROR(SendFragment(message));
    }
  }
  return OkStatus();
}

Status Channel::SendFragment(Outgoing* outgoing) {
  const std::string_view payload = std::string_view(outgoing->message).substr(outgoing->sent, most_payload());
  FragmentHeader header = outgoing->header;
  header.offset = outgoing->sent;
  RETURN_IF_ERROR(PostSend(header, payload, std::move(outgoing->trailer)));
  outgoing->sent += static_cast<uint32_t>(payload.size());
  outgoing->whole = outgoing->sent == outgoing->message.size();
  --credits_;
  return OkStatus();
}

// Work requests that are posted behind it do not begin before it is bound. A driver that cannot bind as it is
// asked to says so at once, and has posted nothing: that is between it and this message.
Status Channel::PostBinding(Outgoing* message) {
  const WindowBinding& binding = message->windows[message->bound];
  ibv_send_wr request{};
  request.opcode = IBV_WR_BIND_MW;
  request.bind_mw.mw = binding.window;
  request.bind_mw.rkey = binding.key;
  request.bind_mw.bind_info = {binding.region, binding.address, binding.length, binding.access};
  const int error = TryPost(&request, Slot());
  if (error == EOPNOTSUPP || error == EINVAL) {
    const Status why =
        ErrnoError(ENOTSUP, absl::StrFormat("%s binds no window to %d bytes of memory: %s",
                                            rail_->port().name(), binding.length, std::strerror(error)));
    message->whole = true;
    asio::post(executor_, [self = shared_from_this(), header = message->header, bound = message->bound, why] {
      self->OnRefused(header, bound, why);
    });
    return OkStatus();
  }
  if (error != 0) return TakesNoWork(error);
  binding.window->rkey = binding.key;
  ++message->bound;
  return OkStatus();
}

Status Channel::SendCredit() { return PostSend(FragmentHeader{}, {}); }

// The device copies small messages as they are posted; the others are built where it can read them.
Status Channel::PostSend(FragmentHeader header, std::string_view payload, Trailer trailer) {
  MessageBuffers& buffers = rail_->buffers();
  const auto size = static_cast<uint32_t>(kFragmentHeaderSize + payload.size());
  std::array<std::byte, QueuePair::kMaxInline> small;
  std::byte* data = small.data();
  uint32_t buffer = kNoBuffer, key = 0;
  const bool taken = size + trailer.bytes <= qp_->inline_bytes();
  if (!taken) {
    ASSIGN_OR_RETURN(buffer, buffers.Take());
    data = buffers.data(buffer);
    key = buffers.local_key(buffer);
  }
  header.length = static_cast<uint16_t>(payload.size() + trailer.bytes);
  header.credits = std::exchange(owed_, 0);
  granted_ += header.credits;
  EncodeFragmentHeader(header, data);
  if (!payload.empty()) std::memcpy(data + kFragmentHeaderSize, payload.data(), payload.size());
  trailer.pieces.insert(trailer.pieces.begin(), {reinterpret_cast<uint64_t>(data), size, key});
  ibv_send_wr request{};
  request.opcode = IBV_WR_SEND;
  request.sg_list = trailer.pieces.data();
  request.num_sge = static_cast<int>(trailer.pieces.size());
  if (taken) request.send_flags = IBV_SEND_INLINE;
  Count().fragments.Add();
  Slot slot;
  slot.buffer = buffer;
  slot.keep = std::move(trailer.keep);
  Status status = Post(&request, std::move(slot));
  if (!status.ok() && !taken) buffers.Return(buffer);
  return status;
}

// A transfer that moves nothing, as taking keys back does, waits for nobody.
bool Channel::TakeTurn(const Transfer& transfer) {
  const uint64_t bytes = transfer.parts[transfer.posted].bytes;
  if (bytes == 0) return true;
  if (turn_ == Turn::kNone) {
    turn_ = rail_->turns().Take(shared_from_this(), bytes) ? Turn::kHas : Turn::kWaits;
  }
  return turn_ == Turn::kHas;
}

bool Channel::OnTurn() {
  Status status;
  bool used = true;
  {
    std::lock_guard lock(mutex_);
    if (!why_.ok()) return false;
    turn_ = Turn::kHas;
    status = Pump();
    if (!status.ok() && turn_ == Turn::kHas) {
      used = false;
      turn_ = Turn::kNone;
    }
  }
  if (!status.ok()) Shutdown(status);
  return used;
}

void Channel::ReturnTurn(uint64_t bytes) {
  if (bytes > 0) rail_->turns().Return(this, bytes);
}

Status Channel::PostPart(Transfer* transfer) {
  TransferPart& part = transfer->parts[transfer->posted];
  ibv_send_wr request{};
  request.opcode = transfer->opcode;
  request.sg_list = part.local.data();
  request.num_sge = static_cast<int>(part.local.size());
  if (transfer->opcode == IBV_WR_LOCAL_INV) {
    request.invalidate_rkey = part.remote_key;
  } else {
    request.wr.rdma.remote_addr = part.remote_address;
    request.wr.rdma.rkey = part.remote_key;
  }
  Slot slot;
  slot.transfer = transfer;
  slot.bytes = part.bytes;
  RETURN_IF_ERROR(Post(&request, std::move(slot)));
  ++transfer->posted;
  if (part.bytes > 0) turn_ = Turn::kNone;
  return OkStatus();
}

int Channel::TryPost(ibv_send_wr* request, Slot slot) {
  const uint32_t index = free_slots_.back();
  request->wr_id = WorkId(index);
  const int error = qp_->Post(request);
  if (error != 0) return error;
  free_slots_.pop_back();
  slot.used = true;
  slots_[index] = std::move(slot);
  return 0;
}

Status Channel::Post(ibv_send_wr* request, Slot slot) {
  const int error = TryPost(request, std::move(slot));
  return error == 0 ? OkStatus() : TakesNoWork(error);
}

Status Channel::TakesNoWork(int error) const {
  return absl::UnavailableError(
      absl::StrFormat("%s takes no work request: %s", rail_->port().name(), std::strerror(error)));
}

// Takes note that one of a transfer's parts has ended; the transfer if it was the last.
Transfer* Channel::EndPart(const Slot& slot, const Status& status) {
  Transfer* transfer = slot.transfer;
  if (transfer->status.ok()) transfer->status = status;
  ++transfer->ended;
  if (why_.ok()) return transfer->ended == transfer->parts.size() ? transfer : nullptr;
  return transfer->ended == transfer->posted ? transfer : nullptr;  // the others will not be posted
}

void Channel::OnSent(uint64_t id, const Status& status) {
  if (id == WorkId(kDrained)) return CameBack(&drained_);
  const auto index = static_cast<uint32_t>(id);
  if (id != WorkId(index)) return;  // of an earlier queue pair with the same number
  Transfer* ended = nullptr;
  uint64_t bytes = 0;
  bool has_work = false;
  Slot slot;  // with what it keeps, which goes with nothing held
  {
    std::lock_guard lock(mutex_);
    if (finished_ || index >= slots_.size() || !slots_[index].used) return;
    slot = std::exchange(slots_[index], Slot());
    ++came_back_;
    free_slots_.push_back(index);
    if (slot.buffer != kNoBuffer) rail_->buffers().Return(slot.buffer);
    bytes = slot.bytes;
    if (slot.transfer != nullptr) ended = EndPart(slot, status);
    has_work = HasWork();
  }
  ReturnTurn(bytes);
  if (!status.ok()) Shutdown(status);
  if (ended != nullptr) End(ended);
  if (status.ok() && has_work) PumpOrShutdown();
}

// A device ends what it has taken, well or not, in the time that its repetitions take.
void Channel::OnTick(Duration now) {
  {
    std::lock_guard lock(mutex_);
    const bool idle = free_slots_.size() == slots_.size();
    if (idle || std::exchange(came_back_by_tick_, came_back_) != came_back_) progress_ = now;
    stuck_.store((now - progress_).count(), std::memory_order_relaxed);
    if (!why_.ok() || now - progress_ < rail_->lost_after()) return;
  }
  Count().lost_work.Add();
  Shutdown(absl::UnavailableError(absl::StrFormat("%s has lost work: none has come back for %d s",
                                                  rail_->port().name(),
                                                  rail_->lost_after() / std::chrono::seconds(1))));
}

void Channel::OnReceived(std::span<const std::byte> bytes) {
  bool has_work = false;
  Status status = Receive(bytes, &has_work);
  if (status.ok() && has_work) PumpOrShutdown();
  if (status.ok()) return;
  if (status.code() == absl::StatusCode::kInvalidArgument) Count().protocol_errors.Add();
  Shutdown(status);
}

Status Channel::Receive(std::span<const std::byte> bytes, bool* has_work) {
  ASSIGN_OR_RETURN(const FragmentHeader header, ParseFragment(bytes));
  {
    std::lock_guard lock(mutex_);
    if (!why_.ok()) return OkStatus();
    RETURN_IF_ERROR(CountReceived(header));
    RETURN_IF_ERROR(CheckOrder(header));
    *has_work = HasWork();
  }
  if (header.kind == FragmentKind::kCredit) return OkStatus();
  if (header.kind == FragmentKind::kPing) {
    if (queued_messages() > kCredits) return ErrnoError(EPROTO, "it asks on and takes no answers");
    Send(FragmentKind::kPong, 0, header.call_id, std::string());
    return OkStatus();
  }
  const std::string_view payload = AsText(bytes.subspan(kFragmentHeaderSize));
  if (partial_.empty() && payload.size() == header.total) return OnMessage(header, payload);
  bool whole = false;
  RETURN_IF_ERROR(Assemble(header, payload, &whole));
  return whole ? OnMessage(header, std::exchange(partial_, std::string())) : OkStatus();
}

Status Channel::CountReceived(const FragmentHeader& header) {
  credits_ += header.credits;
  if (credits_ > remote_.credits) {
    return ErrnoError(EPROTO, absl::StrFormat("it grants %d fragments, more than the %d of its greeting",
                                              credits_, remote_.credits));
  }
  if (header.kind == FragmentKind::kCredit) {
    return header.credits > 0 ? OkStatus() : ErrnoError(EPROTO, "a grant of nothing");
  }
  if (granted_ == 0) {
    Count().beyond_credits.Add();
    return ErrnoError(EPROTO, "it sends more than it was granted");
  }
  --granted_;
  ++owed_;
  return OkStatus();
}

// Messages about a call come after the call; and a client that takes no replies is not served on.
Status Channel::CheckOrder(const FragmentHeader& header) const {
  if (messages_.empty()) return OkStatus();
  if (header.kind == FragmentKind::kCall && messages_.size() > calls_) {
    return ErrnoError(EPROTO,
                      absl::StrFormat("it makes calls and takes no replies: %d wait", messages_.size()));
  }
  if (header.kind != FragmentKind::kReply) return OkStatus();
  const bool queued = std::any_of(messages_.begin(), messages_.end(), [&](const Outgoing& message) {
    return message.header.call_id == header.call_id;
  });
  if (!queued) return OkStatus();
  // The windows of such a call would be bound after they have been taken back.
  return ErrnoError(EPROTO,
                    absl::StrFormat("a reply to call %#x, which has not been sent yet", header.call_id));
}

// Fragments of one message come in order, with no other message's between them.
Status Channel::Assemble(const FragmentHeader& header, std::string_view payload, bool* whole) {
  if (header.offset != partial_.size()) {
    return ErrnoError(EPROTO, absl::StrFormat("a fragment at %d of a message of which there are %d bytes",
                                              header.offset, partial_.size()));
  }
  if (header.offset == 0) partial_header_ = header;
  if (header.kind != partial_header_.kind || header.call_id != partial_header_.call_id ||
      header.total != partial_header_.total) {
    return ErrnoError(EPROTO, absl::StrFormat("a fragment of call %#x within a message of call %#x",
                                              header.call_id, partial_header_.call_id));
  }
  partial_.append(payload);
  *whole = partial_.size() == header.total;
  return OkStatus();
}

}  // namespace nacre::verbs
