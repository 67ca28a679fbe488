// A reliable, connected queue pair at a rail and the states that it goes through. Its receives come from the
// queue that the rail shares among all, its completions go to the rail's. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>

#include "common/status.h"
#include "transport/verbs/message.h"
#include "transport/verbs/rail.h"

namespace nacre::verbs {

class QueuePair {
 public:
  // Able to receive nothing yet. The rail must outlive it. `sends`: work requests that may be posted at once.
  // `sequence`: of its first packet. `remote_access`: what the other end may do by itself, as
  // ibv_access_flags.
  static StatusOr<std::unique_ptr<QueuePair>> Make(Rail& rail, uint32_t sends, uint32_t sequence,
                                                   int remote_access);
  ~QueuePair() { (void)Destroy(); }
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;

  // Messages that are posted behind a write arrive behind it. Not every kind of queue pair keeps this order.
  static constexpr bool kKeepsOrder = true;

  static constexpr uint32_t kMaxInline = 256;

  uint32_t number() const { return qp_->qp_num; }
  // That a send may carry in itself: none, or kMaxInline.
  uint32_t inline_bytes() const { return inline_bytes_; }
  uint32_t max_pieces() const { return max_pieces_; }  // of local memory in a work request

  // The address that the other end has to know, without the credits.
  Endpoint local() const;
  // Once. May take a second if the kernel does not find the other end.
  Status Join(const Endpoint& remote);
  // To the error state, in which what is posted comes back unheard. False: the device does not answer.
  bool Fail();
  // errno; 0: done.
  int Post(ibv_send_wr* request);
  // Last. UNAVAILABLE: the device refuses, and may still carry out what was posted or asked of it from afar.
  // Then the rail's domain is stranded.
  Status Destroy();

 private:
  QueuePair(Rail& rail, uint32_t sequence) : rail_(rail), sequence_(sequence) {}
  Status Create(uint32_t sends, uint32_t inline_bytes);
  Status ToInit(int remote_access);
  Status ToReadyToReceive(const Endpoint& remote);
  Status ToReadyToSend(const Endpoint& remote);
  Status Modify(ibv_qp_attr* attr, int mask, const char* what);

  Rail& rail_;
  const uint32_t sequence_;
  ibv_qp* qp_ = nullptr;
  uint32_t inline_bytes_ = 0, max_pieces_ = 1;
};

}  // namespace nacre::verbs
