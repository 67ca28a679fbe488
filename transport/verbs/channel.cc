#include "transport/verbs/channel.h"

#include <absl/strings/str_format.h>

#include <algorithm>
#include <cstring>

#include "common/metrics.h"
#include "common/random.h"

namespace nacre::verbs {
namespace {

constexpr uint32_t kCredits = 16;          // fragments under way to this end
constexpr uint32_t kSpareReceives = 3;     // for those that only grant credits, see FORMAT.md
constexpr uint32_t kSends = 32;            // work requests posted at once
constexpr uint32_t kSendsForMessages = 4;  // of them
constexpr int kMaxPieces = 16;             // of local memory in a work request
constexpr uint32_t kInlineBytes = 256;
constexpr uint8_t kMaxReads = 16;
constexpr uint64_t kMaxBytesInFlight = 16 << 20;
constexpr Duration kDrainTimeout = std::chrono::seconds(1);

// Of the packets on the wire: 4.096 us << 14 = 67 ms until a packet is sent again, seven times.
constexpr uint8_t kAckTimeout = 14, kRetries = 7, kReceiverNotReadyRetries = 6, kReceiverNotReadyTimer = 12;
constexpr uint8_t kHopLimit = 64;

struct Counters {
  Counter& fragments = GetCounter("transport.verbs.fragments_sent");
  Counter& credit_waits = GetCounter("transport.verbs.credit_waits");
  Counter& protocol_errors = GetCounter("transport.verbs.protocol_errors");
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
      ibverbs_(rail_->domain()->ibverbs()),
      executor_(std::move(executor)),
      clock_(clock),
      calls_(calls),
      remote_access_(remote_access),
      sequence_(static_cast<uint32_t>(SystemRandom().Next() & 0xffffff)),
      slots_(kSends),
      granted_(kCredits) {
  for (uint32_t i = kSends; i > 0; --i) free_slots_.push_back(i - 1);
}

Channel::~Channel() {
  if (qp_ != nullptr) ibverbs_.destroy_qp(qp_);
}

Status Channel::Create(uint32_t inline_bytes) {
  ibv_qp_init_attr attr{};
  attr.send_cq = rail_->completion_queue();
  attr.recv_cq = rail_->completion_queue();
  attr.srq = rail_->receive_queue();
  attr.qp_type = IBV_QPT_RC;
  attr.sq_sig_all = 1;
  attr.cap.max_send_wr = kSends + 1;  // one for PostDrained
  const ibv_device_attr& limits = rail_->domain()->limits();
  attr.cap.max_send_sge = std::clamp<int>(std::min(limits.max_sge, limits.max_sge_rd), 1, kMaxPieces);
  attr.cap.max_inline_data = inline_bytes;
  max_pieces_ = attr.cap.max_send_sge;
  inline_bytes_ = inline_bytes;
  qp_ = ibverbs_.create_qp(rail_->domain()->pd(), &attr);
  if (qp_ != nullptr) return OkStatus();
  return absl::UnavailableError(
      absl::StrFormat("%s makes no queue pair: %s", rail_->port().name(), std::strerror(errno)));
}

Status Channel::Open() {
  if (!Create(kInlineBytes).ok()) RETURN_IF_ERROR(Create(0));
  number_ = qp_->qp_num;
  Status status = ToInit();
  if (status.ok()) status = rail_->Join(number_, shared_from_this(), kCredits + kSpareReceives, kSends + 1);
  if (!status.ok()) ibverbs_.destroy_qp(std::exchange(qp_, nullptr));
  return status;
}

Endpoint Channel::local() const {
  Endpoint endpoint;
  endpoint.link = rail_->port().link;
  endpoint.mtu = rail_->port().mtu;
  endpoint.reads_served =
      static_cast<uint8_t>(std::clamp<int>(rail_->domain()->limits().max_qp_rd_atom, 1, kMaxReads));
  endpoint.lid = rail_->port().lid;
  endpoint.queue_pair = number_;
  endpoint.sequence = sequence_;
  endpoint.credits = kCredits;
  endpoint.calls = calls_;
  endpoint.gid = rail_->port().gid;
  return endpoint;
}

Status Channel::Join(const Endpoint& remote) {
  Status status;
  {
    std::lock_guard lock(mutex_);
    if (!why_.ok()) return absl::UnavailableError(why_.message());
    remote_ = remote;
    credits_ = remote.credits;
    status = ToReadyToReceive();
    if (status.ok()) status = ToReadyToSend();
    ready_ = status.ok();
    if (status.ok()) status = Pump();
  }
  if (!status.ok()) Shutdown(status);
  return status;
}

Status Channel::Modify(ibv_qp_attr* attr, int mask, const char* what) {
  const int error = ibverbs_.modify_qp(qp_, attr, mask);
  if (error == 0) return OkStatus();
  return absl::UnavailableError(absl::StrFormat("%s: the queue pair cannot be made %s: %s",
                                                rail_->port().name(), what, std::strerror(error)));
}

Status Channel::ToInit() {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = rail_->port().port;
  attr.qp_access_flags = static_cast<unsigned>(remote_access_);
  return Modify(&attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, "ready");
}

Status Channel::ToReadyToReceive() {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = static_cast<ibv_mtu>(std::min(rail_->port().mtu, remote_.mtu));
  attr.dest_qp_num = remote_.queue_pair;
  attr.rq_psn = remote_.sequence;
  attr.max_dest_rd_atomic = local().reads_served;
  attr.min_rnr_timer = kReceiverNotReadyTimer;
  attr.ah_attr.port_num = rail_->port().port;
  attr.ah_attr.dlid = remote_.lid;
  if (remote_.link == LinkLayer::kEthernet) {
    attr.ah_attr.is_global = 1;
    attr.ah_attr.grh.sgid_index = rail_->port().gid_index;
    attr.ah_attr.grh.hop_limit = kHopLimit;
    std::memcpy(attr.ah_attr.grh.dgid.raw, remote_.gid.data(), remote_.gid.size());
  }
  return Modify(&attr,
                IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
                "ready to receive");
}

Status Channel::ToReadyToSend() {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTS;
  attr.sq_psn = sequence_;
  attr.timeout = kAckTimeout;
  attr.retry_cnt = kRetries;
  attr.rnr_retry = kReceiverNotReadyRetries;
  attr.max_rd_atomic = static_cast<uint8_t>(std::clamp<int>(
      std::min<int>(remote_.reads_served, rail_->domain()->limits().max_qp_init_rd_atom), 1, kMaxReads));
  return Modify(&attr,
                IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                    IBV_QP_MAX_QP_RD_ATOMIC,
                "ready to send");
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

bool Channel::Send(FragmentKind kind, uint8_t flags, uint64_t call_id, std::string message) {
  FragmentHeader header;
  header.kind = kind;
  header.flags = flags;
  header.call_id = call_id;
  header.total = static_cast<uint32_t>(message.size());
  {
    std::lock_guard lock(mutex_);
    if (!why_.ok()) return false;
    messages_.push_back({header, std::move(message)});
    if (credits_ == 0) Count().credit_waits.Add();
  }
  PumpOrShutdown();
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
  while (!messages_.empty() && credits_ > 0 && !free_slots_.empty()) {
    RETURN_IF_ERROR(SendFragment(&messages_.front()));
    if (messages_.front().sent == messages_.front().message.size()) messages_.pop_front();
  }
  if (owed_ >= kCredits / 2 && !free_slots_.empty()) RETURN_IF_ERROR(SendCredit());
  while (!transfers_.empty() && free_slots_.size() > kSendsForMessages &&
         bytes_in_flight_ < kMaxBytesInFlight) {
    Transfer* transfer = transfers_.front();
    RETURN_IF_ERROR(PostPart(transfer));
    if (transfer->posted == transfer->parts.size()) transfers_.pop_front();
  }
  return OkStatus();
}

Status Channel::SendFragment(Outgoing* outgoing) {
  const std::string_view payload =
      std::string_view(outgoing->message).substr(outgoing->sent, kFragmentPayload);
  FragmentHeader header = outgoing->header;
  header.offset = outgoing->sent;
  RETURN_IF_ERROR(PostSend(header, payload));
  outgoing->sent += static_cast<uint32_t>(payload.size());
  --credits_;
  return OkStatus();
}

Status Channel::SendCredit() { return PostSend(FragmentHeader{}, {}); }

Status Channel::PostSend(FragmentHeader header, std::string_view payload) {
  MessageBuffers& buffers = rail_->buffers();
  ASSIGN_OR_RETURN(const uint32_t buffer, buffers.Take());
  header.length = static_cast<uint16_t>(payload.size());
  header.credits = std::exchange(owed_, 0);
  granted_ += header.credits;
  std::byte* data = buffers.data(buffer);
  EncodeFragmentHeader(header, data);
  if (!payload.empty()) std::memcpy(data + kFragmentHeaderSize, payload.data(), payload.size());
  const auto size = static_cast<uint32_t>(kFragmentHeaderSize + payload.size());
  ibv_sge piece{reinterpret_cast<uint64_t>(data), size, buffers.local_key(buffer)};
  ibv_send_wr request{};
  request.opcode = IBV_WR_SEND;
  request.sg_list = &piece;
  request.num_sge = 1;
  if (size <= inline_bytes_) request.send_flags = IBV_SEND_INLINE;
  Count().fragments.Add();
  Status status = Post(&request, Slot{nullptr, 0, buffer});
  if (!status.ok()) buffers.Return(buffer);
  return status;
}

Status Channel::PostPart(Transfer* transfer) {
  TransferPart& part = transfer->parts[transfer->posted];
  ibv_send_wr request{};
  request.opcode = transfer->opcode;
  request.sg_list = part.local.data();
  request.num_sge = static_cast<int>(part.local.size());
  request.wr.rdma.remote_addr = part.remote_address;
  request.wr.rdma.rkey = part.remote_key;
  RETURN_IF_ERROR(Post(&request, Slot{transfer, part.bytes, kNoBuffer}));
  ++transfer->posted;
  bytes_in_flight_ += part.bytes;
  return OkStatus();
}

Status Channel::Post(ibv_send_wr* request, Slot slot) {
  const uint32_t index = free_slots_.back();
  request->wr_id = index;
  ibv_send_wr* bad = nullptr;
  const int error = ibv_post_send(qp_, request, &bad);
  if (error != 0) {
    return absl::UnavailableError(
        absl::StrFormat("%s takes no work request: %s", rail_->port().name(), std::strerror(error)));
  }
  free_slots_.pop_back();
  slots_[index] = slot;
  return OkStatus();
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
  if (id == kDrained) return Finish();
  Transfer* ended = nullptr;
  {
    std::lock_guard lock(mutex_);
    if (finished_ || id >= slots_.size()) return;
    const Slot slot = std::exchange(slots_[id], Slot());
    if (slot.buffer == kNoBuffer && slot.transfer == nullptr) return;  // of an earlier queue pair's
    free_slots_.push_back(static_cast<uint32_t>(id));
    if (slot.buffer != kNoBuffer) rail_->buffers().Return(slot.buffer);
    if (slot.transfer != nullptr) {
      bytes_in_flight_ -= slot.bytes;
      ended = EndPart(slot, status);
    }
  }
  if (!status.ok()) Shutdown(status);
  if (ended != nullptr) ended->done.Set(ended->status);
  if (status.ok()) PumpOrShutdown();
}

void Channel::OnReceived(std::span<const std::byte> bytes) {
  Status status = Receive(bytes);
  if (status.ok()) return PumpOrShutdown();
  if (status.code() == absl::StatusCode::kInvalidArgument) Count().protocol_errors.Add();
  Shutdown(status);
}

Status Channel::Receive(std::span<const std::byte> bytes) {
  ASSIGN_OR_RETURN(const FragmentHeader header, ParseFragment(bytes));
  {
    std::lock_guard lock(mutex_);
    if (!why_.ok()) return OkStatus();
    RETURN_IF_ERROR(CountReceived(header));
  }
  if (header.kind == FragmentKind::kCredit) return OkStatus();
  if (header.kind == FragmentKind::kPing) {
    if (queued_messages() > kCredits) return ErrnoError(EPROTO, "it asks on and takes no answers");
    Send(FragmentKind::kPong, 0, header.call_id, std::string());
    return OkStatus();
  }
  bool whole = false;
  RETURN_IF_ERROR(Assemble(header, AsText(bytes.subspan(kFragmentHeaderSize)), &whole));
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
  if (granted_ == 0) return ErrnoError(EPROTO, "it sends more than it was granted");
  --granted_;
  ++owed_;
  return OkStatus();
}

// Fragments of one message come in order, with no other message's between them.
Status Channel::Assemble(const FragmentHeader& header, std::string_view payload, bool* whole) {
  if (header.offset != partial_.size()) {
    return ErrnoError(EPROTO, absl::StrFormat("a fragment at %d of a message of which there are %d bytes",
                                              header.offset, partial_.size()));
  }
  if (header.offset == 0) {
    partial_header_ = header;
    partial_.reserve(header.total);
  }
  if (header.kind != partial_header_.kind || header.call_id != partial_header_.call_id ||
      header.total != partial_header_.total) {
    return ErrnoError(EPROTO, absl::StrFormat("a fragment of call %#x within a message of call %#x",
                                              header.call_id, partial_header_.call_id));
  }
  partial_.append(payload);
  *whole = partial_.size() == header.total;
  return OkStatus();
}

void Channel::Shutdown(const Status& why) {
  std::vector<Transfer*> ended;
  {
    std::lock_guard lock(mutex_);
    if (!why_.ok()) return;
    why_ = why;
    closing_.store(true, std::memory_order_release);
    messages_.clear();
    for (Transfer* transfer : transfers_) {
      if (transfer->ended == transfer->posted) ended.push_back(transfer);
      transfer->status = absl::UnavailableError(why.message());
    }
    transfers_.clear();
    drain_timer_ = clock_.After(executor_, kDrainTimeout, [self = shared_from_this()] { self->Finish(); });
    PostDrained();
  }
  for (Transfer* transfer : ended) transfer->done.Set(transfer->status);
}

// Everything that was posted comes back, this last.
void Channel::PostDrained() {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  ibv_send_wr request{}, *bad = nullptr;
  request.wr_id = kDrained;
  request.opcode = IBV_WR_SEND;
  const bool draining =
      ibverbs_.modify_qp(qp_, &attr, IBV_QP_STATE) == 0 && ibv_post_send(qp_, &request, &bad) == 0;
  if (!draining) asio::post(executor_, [self = shared_from_this()] { self->Finish(); });
}

void Channel::Finish() {
  std::vector<Transfer*> ended;
  std::unique_ptr<TimerHandle> timer;
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(finished_, true)) return;
    timer = std::move(drain_timer_);
  }
  ibverbs_.destroy_qp(std::exchange(qp_, nullptr));
  rail_->Leave(number_, kCredits + kSpareReceives, kSends + 1);
  {
    std::lock_guard lock(mutex_);
    for (Slot& slot : slots_) {
      if (slot.buffer != kNoBuffer) rail_->buffers().Return(slot.buffer);
      if (slot.transfer == nullptr) continue;
      Transfer* transfer = EndPart(slot, absl::UnavailableError(why_.message()));
      if (transfer != nullptr) ended.push_back(transfer);
      slot = Slot();
    }
  }
  for (Transfer* transfer : ended) transfer->done.Set(transfer->status);
  OnClosed(why_);
}

}  // namespace nacre::verbs
