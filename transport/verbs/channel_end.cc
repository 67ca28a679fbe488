// How a channel ends: see the order in channel.h.
#include "transport/verbs/channel.h"

namespace nacre::verbs {
namespace {

constexpr Duration kDrainTimeout = std::chrono::seconds(1);
constexpr Duration kLastReceiveTimeout = std::chrono::milliseconds(20);  // some drivers never say so

}  // namespace

void Channel::Shutdown(const Status& why) {
  std::vector<Transfer*> ended;
  std::deque<Outgoing> unsent;
  uint64_t bytes = 0;
  {
    std::lock_guard lock(mutex_);
    if (!why_.ok()) return;
    why_ = why;
    if (turn_ == Turn::kWaits) rail_->turns().Leave(this);
    if (turn_ == Turn::kHas) bytes = transfers_.front()->parts[transfers_.front()->posted].bytes;
    closing_.store(true, std::memory_order_release);
    unsent.swap(messages_);
    for (Transfer* transfer : transfers_) {
      if (transfer->ended == transfer->posted) ended.push_back(transfer);
      transfer->status = absl::UnavailableError(why.message());
      if (transfer->all_posted) transfer->all_posted->Set({});
    }
    transfers_.clear();
    if (!joining_) Drain();  // else Join will
  }
  ReturnTurn(bytes);
  for (Transfer* transfer : ended) End(transfer);
}

// Everything that was posted comes back, this last.
void Channel::Drain() {
  ibv_send_wr request{};
  request.wr_id = WorkId(kDrained);
  request.opcode = IBV_WR_SEND;
  const bool draining = qp_->Fail() && qp_->Post(&request) == 0;
  FinishAfter(draining ? kDrainTimeout : Duration::zero());
}

void Channel::FinishAfter(Duration delay) {
  finish_timer_ = clock_.After(executor_, delay, [self = shared_from_this()] { self->Finish(); });
}

// Receives that the queue pair has taken from the shared queue are lost with it unless they have come back.
void Channel::CameBack(bool* what) {
  {
    std::lock_guard lock(mutex_);
    *what = true;
    if (why_.ok() || finished_ || !drained_) return;
    if (!last_received_) return FinishAfter(kLastReceiveTimeout);
  }
  rail_->AfterNextPoll([self = shared_from_this()] { self->Finish(); });
}

void Channel::Finish() {
  std::unique_ptr<TimerHandle> timer;
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(finished_, true)) return;
    timer = std::move(finish_timer_);
  }
  const Status freed = FreeWindows();
  if (!freed.ok()) rail_->Strand(freed);
  const bool gone = qp_->Destroy().ok() && freed.ok();
  // Before Leave, after which the device may be closed at any time.
  if (!gone) rail_->domain()->AfterClose([self = shared_from_this()] { self->EndAll(); });
  rail_->Leave(number_, kCredits + kSpareReceives, kSends + 1);
  if (gone) EndAll();
}

// Nobody touches the memory of the transfers and of the other end's calls any more.
void Channel::EndAll() {
  std::vector<Transfer*> ended;
  std::vector<Slot> slots;
  uint64_t bytes = 0;
  {
    std::lock_guard lock(mutex_);
    slots.swap(slots_);
    for (const Slot& slot : slots) {
      if (slot.buffer != kNoBuffer) rail_->buffers().Return(slot.buffer);
      if (slot.transfer == nullptr) continue;
      bytes += slot.bytes;
      Transfer* transfer = EndPart(slot, absl::UnavailableError(why_.message()));
      if (transfer != nullptr) ended.push_back(transfer);
    }
  }
  ReturnTurn(bytes);
  for (Transfer* transfer : ended) End(transfer);
  OnClosed(why_);
}

}  // namespace nacre::verbs
