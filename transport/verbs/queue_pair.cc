#include "transport/verbs/queue_pair.h"

#include <absl/strings/str_format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace nacre::verbs {
namespace {

constexpr int kMaxPieces = 16;
constexpr uint8_t kMaxReads = 16;

// Of the packets on the wire: 4.096 us << 18 = 1.07 s until a packet is sent again, seven times. A receiver
// that misses one says so at once; this is for when it cannot, or is slow: repeating then helps nobody.
constexpr uint8_t kAckTimeout = 18, kRetries = 7;
// Only if a client takes more receives than it was granted do others find none: they have 10 ms, six times,
// until it has been cut off.
constexpr uint8_t kReceiverNotReadyRetries = 6, kReceiverNotReadyTimer = 20;
constexpr uint8_t kHopLimit = 64;

}  // namespace

StatusOr<std::unique_ptr<QueuePair>> QueuePair::Make(Rail& rail, uint32_t sends, uint32_t sequence,
                                                     int remote_access) {
  std::unique_ptr<QueuePair> made(new QueuePair(rail, sequence));
  if (!made->Create(sends, kMaxInline).ok()) RETURN_IF_ERROR(made->Create(sends, 0));
  RETURN_IF_ERROR(made->ToInit(remote_access));
  return made;
}

Status QueuePair::Destroy() {
  ibv_qp* qp = std::exchange(qp_, nullptr);
  int error = 0;
  if (const auto use = rail_.domain()->Use(); qp != nullptr && use)
    error = rail_.domain()->ibverbs().destroy_qp(qp);
  if (error == 0) return OkStatus();
  Status status =
      absl::UnavailableError(absl::StrFormat("a queue pair cannot be destroyed: %s", std::strerror(error)));
  rail_.Strand(status);
  return status;
}

Status QueuePair::Create(uint32_t sends, uint32_t inline_bytes) {
  ibv_qp_init_attr attr{};
  attr.send_cq = rail_.completion_queue();
  attr.recv_cq = rail_.completion_queue();
  attr.srq = rail_.receive_queue();
  attr.qp_type = IBV_QPT_RC;
  attr.sq_sig_all = 1;
  attr.cap.max_send_wr = sends;
  const ibv_device_attr& limits = rail_.domain()->limits();
  attr.cap.max_send_sge = std::clamp<int>(std::min(limits.max_sge, limits.max_sge_rd), 1, kMaxPieces);
  attr.cap.max_inline_data = inline_bytes;
  max_pieces_ = attr.cap.max_send_sge;
  inline_bytes_ = inline_bytes;
  const auto use = rail_.domain()->Use();
  if (!use) return absl::UnavailableError("the RDMA device has failed");
  qp_ = rail_.domain()->ibverbs().create_qp(rail_.domain()->pd(), &attr);
  if (qp_ != nullptr) return OkStatus();
  return absl::UnavailableError(
      absl::StrFormat("%s makes no queue pair: %s", rail_.port().name(), std::strerror(errno)));
}

Endpoint QueuePair::local() const {
  Endpoint endpoint;
  endpoint.link = rail_.port().link;
  endpoint.mtu = rail_.port().mtu;
  endpoint.reads_served =
      static_cast<uint8_t>(std::clamp<int>(rail_.domain()->limits().max_qp_rd_atom, 1, kMaxReads));
  endpoint.lid = rail_.port().lid;
  endpoint.queue_pair = number();
  endpoint.sequence = sequence_;
  endpoint.gid = rail_.port().gid;
  return endpoint;
}

Status QueuePair::Join(const Endpoint& remote) {
  RETURN_IF_ERROR(ToReadyToReceive(remote));
  return ToReadyToSend(remote);
}

bool QueuePair::Fail() {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  const auto use = rail_.domain()->Use();
  return use && rail_.domain()->ibverbs().modify_qp(qp_, &attr, IBV_QP_STATE) == 0;
}

int QueuePair::Post(ibv_send_wr* request) {
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(qp_, request, &bad);
}

Status QueuePair::Modify(ibv_qp_attr* attr, int mask, const char* what) {
  const auto use = rail_.domain()->Use();
  const int error = use ? rail_.domain()->ibverbs().modify_qp(qp_, attr, mask) : ENODEV;
  if (error == 0) return OkStatus();
  return absl::UnavailableError(absl::StrFormat("%s: the queue pair cannot be made %s: %s",
                                                rail_.port().name(), what, std::strerror(error)));
}

Status QueuePair::ToInit(int remote_access) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = rail_.port().port;
  attr.qp_access_flags = static_cast<unsigned>(remote_access);
  return Modify(&attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, "ready");
}

Status QueuePair::ToReadyToReceive(const Endpoint& remote) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = static_cast<ibv_mtu>(std::min(rail_.port().mtu, remote.mtu));
  attr.dest_qp_num = remote.queue_pair;
  attr.rq_psn = remote.sequence;
  attr.max_dest_rd_atomic = local().reads_served;
  attr.min_rnr_timer = kReceiverNotReadyTimer;
  attr.ah_attr.port_num = rail_.port().port;
  attr.ah_attr.dlid = remote.lid;
  if (remote.link == LinkLayer::kEthernet) {
    attr.ah_attr.is_global = 1;
    attr.ah_attr.grh.sgid_index = rail_.port().gid_index;
    attr.ah_attr.grh.hop_limit = kHopLimit;
    std::memcpy(attr.ah_attr.grh.dgid.raw, remote.gid.data(), remote.gid.size());
  }
  return Modify(&attr,
                IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
                "ready to receive");
}

Status QueuePair::ToReadyToSend(const Endpoint& remote) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTS;
  attr.sq_psn = sequence_;
  attr.timeout = kAckTimeout;
  attr.retry_cnt = kRetries;
  attr.rnr_retry = kReceiverNotReadyRetries;
  attr.max_rd_atomic = static_cast<uint8_t>(std::clamp<int>(
      std::min<int>(remote.reads_served, rail_.domain()->limits().max_qp_init_rd_atom), 1, kMaxReads));
  return Modify(&attr,
                IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                    IBV_QP_MAX_QP_RD_ATOMIC,
                "ready to send");
}

}  // namespace nacre::verbs
