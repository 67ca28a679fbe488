// One reliable queue pair: messages in both directions, and transfers to and from the other end's memory.
//
// A message is cut into fragments, each a SEND. Each fragment takes one of the credits that the other end has
// granted, so that there is always a receive posted for it; what was received is granted again with the next
// fragment, or by one of its own when half is owed and nothing else is to be sent. Transfers are RDMA reads
// and writes; what is under way is bounded for the whole rail, whose channels take turns (turns.h), the rest
// waits in order. Nothing relies on the order between
// transfers; a message goes out behind those that were started before it and ended.
//
// It ends in an order that lets nobody's memory be touched afterwards:
//   Shutdown (from anywhere) -> the queue pair goes to its error state, and is destroyed when all that was
//   posted has come back and the device has said that it takes no more receives for it (or after a while),
//   the windows before it -> transfers fail -> OnClosed, once.
// If the device refuses to destroy the queue pair or a window, the rail fails, and the transfers and OnClosed
// wait until the device has been closed.
// Thread-safe. Held in a shared_ptr.
#pragma once

#include <absl/container/inlined_vector.h>

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/task.h"
#include "transport/verbs/message.h"
#include "transport/verbs/queue_pair.h"
#include "transport/verbs/rail.h"

namespace nacre::verbs {

// Memory of this end that a window is to show to the other.
struct WindowBinding {
  ibv_mw* window = nullptr;
  uint32_t key = 0;  // the new one
  ibv_mr* region = nullptr;
  uint64_t address = 0, length = 0;
  unsigned access = 0;  // ibv_access_flags
};

// Registered memory whose bytes follow a message, in the same fragment.
struct Trailer {
  absl::InlinedVector<ibv_sge, 4> pieces;
  uint32_t bytes = 0;          // of all pieces
  std::shared_ptr<void> keep;  // dropped when nobody reads them any more
};

// One work request of a transfer.
struct TransferPart {
  uint64_t remote_address = 0;
  uint32_t remote_key = 0;  // or the one to take back
  uint32_t bytes = 0;
  absl::InlinedVector<ibv_sge, 2> local;
};

// Belongs to the coroutine that runs it, or to the channel if it was lent.
struct Transfer {
  ibv_wr_opcode opcode = IBV_WR_RDMA_WRITE;  // or RDMA_READ, or LOCAL_INV: take keys of windows back
  std::vector<TransferPart> parts;

  // The rest is the channel's.
  size_t posted = 0, ended = 0;
  Status status;
  OneShot<Status> done;
  std::optional<OneShot<Unit>> all_posted;  // of a lent one, as are these
  std::unique_ptr<Transfer> own;
  std::shared_ptr<void> keep;
};

class Channel : public CompletionSink, public Turns::Taker, public std::enable_shared_from_this<Channel> {
 public:
  // `remote_access`: what the other end may do by itself, as ibv_access_flags.
  Channel(std::shared_ptr<Rail> rail, Executor executor, Clock& clock, uint32_t calls, int remote_access);
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Makes the queue pair. First; if it fails, nothing else may be called.
  Status Open();
  const Endpoint& local() const { return local_; }
  // Joins it to the other end's, once. Waits for the kernel to find that one, which may take a second if it
  // is not there. On error Shutdown has been called.
  Status Join(const Endpoint& remote);

  // Once all its parts have ended, and nobody can touch the local memory it names any more. UNAVAILABLE: the
  // channel has ended; the transfer may have been carried out in part.
  Task<Status> Run(Transfer* transfer);

  // Starts a transfer that nobody waits for; `keep` is dropped when nobody can touch the local memory any
  // more. The returned OneShot is set when the transfer cannot be overtaken any more: it arrives before all
  // that is sent from then on, if that arrives at all. For channels that keep the order alone.
  OneShot<Unit> Lend(std::unique_ptr<Transfer> transfer, std::shared_ptr<void> keep);
  static constexpr bool keeps_order() { return QueuePair::kKeepsOrder; }

  // False: the channel is ending. Otherwise the message goes out unless the channel ends, behind the binding
  // of these windows, with a trailer that fits.
  bool Send(FragmentKind kind, uint8_t flags, uint64_t call_id, std::string message,
            std::vector<WindowBinding> windows = {}, Trailer trailer = {});
  // Whether one fragment holds both. Once joined.
  bool Fits(size_t message, const Trailer& trailer) const;

  void Shutdown(const Status& why);
  bool closing() const { return closing_.load(std::memory_order_acquire); }

  Rail& rail() { return *rail_; }
  const Endpoint& remote() const { return remote_; }
  uint32_t max_pieces() const { return max_pieces_; }
  size_t queued_messages();  // that wait for credits
  // For how long none of the work that the device has been given has come back, as of the last tick.
  Duration stuck() const { return Duration(stuck_.load(std::memory_order_relaxed)); }

 protected:
  // A whole message, or a pong; it is gone afterwards. From the rail's loop, one at a time. An error ends the
  // channel.
  virtual Status OnMessage(const FragmentHeader& header, std::string_view message) = 0;
  virtual void OnClosed(const Status& why) = 0;
  // ENOTSUP: the device binds no window as this message needs it, so it is not sent, and the channel goes on.
  // The first `bound` of its windows are bound.
  virtual void OnRefused([[maybe_unused]] const FragmentHeader& header, [[maybe_unused]] size_t bound,
                         [[maybe_unused]] const Status& why) {}
  // The queue pair is about to be destroyed: not before what is bound through it. UNAVAILABLE: the device
  // refuses.
  virtual Status FreeWindows() { return OkStatus(); }
  void OnTick(Duration now) override;

  const Executor& executor() const { return executor_; }
  Clock& clock() { return clock_; }

 private:
  struct Outgoing {
    FragmentHeader header;
    std::string message;
    std::vector<WindowBinding> windows;
    Trailer trailer;
    uint32_t sent = 0;  // of the message
    size_t bound = 0;
    bool whole = false;  // all of it has been posted, or it was refused
  };
  // The meaning of a work request that is posted.
  struct Slot {
    Transfer* transfer = nullptr;
    uint32_t bytes = 0;  // of the transfer's part
    uint32_t buffer = kNoBuffer;
    std::shared_ptr<void> keep;
    bool used = false;
  };
  static constexpr uint32_t kNoBuffer = ~uint32_t{0};
  static constexpr uint32_t kCredits = 16;       // fragments under way to this end
  static constexpr uint32_t kSpareReceives = 3;  // for those that only grant credits, see FORMAT.md
  static constexpr uint32_t kSends = 32;         // work requests posted at once
  static constexpr uint32_t kDrained = kSends;   // in place of a slot: the last work request
  enum class Turn { kNone, kWaits, kHas };       // to post the next part of the first transfer

  uint64_t WorkId(uint32_t slot) const { return uint64_t{sequence_} << 32 | slot; }
  void OnReceived(std::span<const std::byte> bytes) override;
  void OnLastReceive() override { CameBack(&last_received_); }
  void OnSent(uint64_t id, const Status& status) override;
  void OnFailed(const Status& why) override { Shutdown(why); }
  bool OnTurn() override;

  // These under mutex_.
  Status Pump();
  bool HasWork() const;  // for Pump, if it may
  Status SendOn(Outgoing* message);
  Status SendFragment(Outgoing* outgoing);
  Status PostBinding(Outgoing* message);
  Status SendCredit();
  Status PostSend(FragmentHeader header, std::string_view payload, Trailer trailer = {});
  uint32_t most_payload() const;  // of a fragment to the other end that is built in one of our buffers
  bool TakeTurn(const Transfer& transfer);
  Status PostPart(Transfer* transfer);
  int TryPost(ibv_send_wr* request, Slot slot);  // errno; 0: done
  Status Post(ibv_send_wr* request, Slot slot);
  Status TakesNoWork(int error) const;
  Status CountReceived(const FragmentHeader& header);
  Status CheckOrder(const FragmentHeader& header) const;
  Status Assemble(const FragmentHeader& header, std::string_view payload, bool* whole);
  static void End(Transfer* transfer);
  Transfer* EndPart(const Slot& slot, const Status& status);

  Status Receive(std::span<const std::byte> bytes, bool* has_work);
  void PumpOrShutdown();
  void ReturnTurn(uint64_t bytes);
  void Drain();                      // under mutex_
  void FinishAfter(Duration delay);  // under mutex_
  void CameBack(bool* what);
  void Finish();
  void EndAll();

  const std::shared_ptr<Rail> rail_;
  const Executor executor_;
  Clock& clock_;
  const uint32_t calls_;
  const int remote_access_;
  std::unique_ptr<QueuePair> qp_;
  uint32_t number_ = 0, max_pieces_ = 1;  // of the queue pair
  const uint32_t sequence_;
  Endpoint local_, remote_;
  std::atomic<bool> closing_ = false;
  // A message that is not whole yet; only for the rail's loop.
  FragmentHeader partial_header_;
  std::string partial_;

  std::mutex mutex_;
  Status why_;  // not OK from Shutdown on
  bool joining_ = false, ready_ = false, finished_ = false;
  bool drained_ = false, last_received_ = false;
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_slots_;
  uint64_t came_back_ = 0, came_back_by_tick_ = 0;  // work requests
  Duration progress_;                               // when OnTick saw some last
  std::atomic<Duration::rep> stuck_ = 0;
  Turn turn_ = Turn::kNone;
  std::deque<Outgoing> messages_;
  std::deque<Transfer*> transfers_;  // with parts that are not posted
  uint32_t credits_ = 0;             // what may be sent
  uint32_t owed_ = 0;                // received and not granted again
  uint32_t granted_ = 0;             // what the other end may send
  std::unique_ptr<TimerHandle> finish_timer_;
};

}  // namespace nacre::verbs
