// One port of one RDMA device in use: its completion queue, the receive queue that all its connections share,
// and the loop that polls them. While completions come the loop polls without pause; after `spin` without one
// it arms the completion channel and sleeps until the device speaks.
//
// Thread-safe. Held in a shared_ptr by its connections. A rail fails once, when the port or the device goes:
// all its connections end, and it is not used again (a new one is opened when the port is back).
//
// A rail is stranded when its device refuses to destroy something. Then it has failed too, and the memory of
// its calls is kept until the device is closed, which is as soon as its connections have left.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <atomic>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "common/clock.h"
#include "common/task.h"
#include "transport/verbs/domain.h"
#include "transport/verbs/message_buffers.h"
#include "transport/verbs/patience.h"
#include "transport/verbs/put_budget.h"
#include "transport/verbs/rail_options.h"
#include "transport/verbs/receive_ledger.h"
#include "transport/verbs/staging.h"
#include "transport/verbs/turns.h"

namespace nacre::verbs {

// Where the completions of one queue pair go. Called by the loop only, one call at a time per rail.
class CompletionSink {
 public:
  virtual ~CompletionSink() = default;
  virtual void OnReceived(std::span<const std::byte> bytes) = 0;  // valid during the call
  // Of the work request with this id. The opcode tells nothing if the status is not OK.
  virtual void OnSent(uint64_t id, const Status& status) = 0;
  // Of the receiving side or the rail; from any thread.
  virtual void OnFailed(const Status& why) = 0;
  // The queue pair is in its error state and takes no receives from the shared queue any more; from any
  // thread.
  virtual void OnLastReceive() = 0;
  // About once a second; from any thread.
  virtual void OnTick(Duration now) = 0;
};

class Rail : public std::enable_shared_from_this<Rail> {
 public:
  static StatusOr<std::shared_ptr<Rail>> Open(const Ibverbs& ibverbs, const PortInfo& port, Executor executor,
                                              Clock& clock, const RailOptions& options);
  ~Rail();
  Rail(const Rail&) = delete;
  Rail& operator=(const Rail&) = delete;

  const PortInfo& port() const { return port_; }
  const std::shared_ptr<Domain>& domain() const { return domain_; }
  ibv_cq* completion_queue() const { return cq_; }
  ibv_srq* receive_queue() const { return srq_; }
  // Bytes of the calls that use it as clients, for whoever chooses among rails.
  std::atomic<uint64_t>& load() { return load_; }
  Duration lost_after() const { return lost_after_; }  // see RailOptions
  MessageBuffers& buffers() { return buffers_; }
  Staging& staging() { return *staging_; }
  // The budget that its connections share: as clients and as servers.
  const std::shared_ptr<PutBudget>& puts() { return puts_; }
  Turns& turns() { return turns_; }

  // Before anything else: what is called once, with nothing held, when the rail has failed, its connections
  // have left, and nothing of it is polled or waited for any more. If it is stranded, Close has to follow.
  void OnFailure(absl::AnyInvocable<void()> failed) { on_failure_ = std::move(failed); }

  // Takes a queue pair in: `receives` more receives are posted for it, and `sends` of its completions have a
  // place. RESOURCE_EXHAUSTED: this rail has as many connections as it can serve.
  Status Join(uint32_t queue_pair, std::shared_ptr<CompletionSink> sink, uint32_t receives, uint32_t sends);
  void Leave(uint32_t queue_pair, uint32_t receives, uint32_t sends);

  // Runs the function in the loop when all completions that are there now have been handed on. While there
  // are connections.
  void AfterNextPoll(absl::AnyInvocable<void()> function);

  void Fail(const Status& why);
  bool failed() const;

  // The device has refused to destroy something of a connection's, which has yet to leave.
  void Strand(const Status& why);
  // Closes the device if the rail is stranded: see Domain::Close.
  void Close();

  // From now on it looks after its device, as it does from its first connection on.
  void Watch();
  // From now on nothing is pending while there are no connections. Until then the rail looks after its
  // device.
  void Rest();

 private:
  Rail(std::shared_ptr<Domain> domain, const PortInfo& port, Executor executor, Clock& clock,
       const RailOptions& options);
  Status Create();
  Status PostReceive(uint32_t buffer);
  void ReplaceLostReceives();
  std::shared_ptr<CompletionSink> Find(uint32_t queue_pair);
  std::vector<std::shared_ptr<CompletionSink>> Sinks();

  absl::AnyInvocable<void()> TakeOnFailure();  // under mutex_; does nothing if it is not time

  void Poll();
  int PollOnce();
  void PollFor(std::vector<absl::AnyInvocable<void()>> waiters);
  void Dispatch(const ibv_wc& completion);
  bool IsBusy();
  bool Sleep();              // false: something came meanwhile
  void WaitForCompletion();  // under mutex_
  void ConsumeEvents();
  void WaitForAsyncEvent();  // under mutex_
  void WatchDevice();        // under mutex_
  void LookAtDevice();
  void OnAsyncEvents();
  bool HasItsGid() const;
  Status HandleAsyncEvent(const ibv_async_event& event);

  const std::shared_ptr<Domain> domain_;
  const Ibverbs& ibverbs_;
  const PortInfo port_;
  const Executor executor_;
  Clock& clock_;
  const Duration lost_after_;
  MessageBuffers buffers_;
  const std::shared_ptr<Staging> staging_;
  ReceiveLedger receives_;
  const std::shared_ptr<PutBudget> puts_;
  Turns turns_;
  std::atomic<uint64_t> load_ = 0;
  std::string device_path_;  // in sysfs
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* cq_ = nullptr;
  ibv_srq* srq_ = nullptr;
  uint32_t max_receives_ = 0, max_completions_ = 0;

  // Only for the loop.
  bool came_ = false;  // completions, since the clock was read
  Duration last_completion_{}, last_active_{};
  Patience patience_;

  mutable std::mutex mutex_;
  asio::posix::stream_descriptor completion_events_, async_events_;
  struct Joined {
    std::shared_ptr<CompletionSink> sink;
    uint64_t number = 0;  // in receives_
  };
  absl::flat_hash_map<uint32_t, Joined> sinks_;
  absl::AnyInvocable<void()> on_failure_;
  std::vector<absl::AnyInvocable<void()>> after_poll_;
  std::atomic<bool> polled_for_ = false;  // after_poll_ is not empty
  bool looping_ = false;                  // Poll runs, or will
  bool awaiting_async_ = false;
  bool resting_ = false;
  std::unique_ptr<TimerHandle> device_timer_;
  Status failed_;
  uint32_t wanted_receives_ = 0;  // what the connections need
  uint32_t posted_receives_ = 0;  // never taken back; what is lost is replaced
  uint32_t reserved_sends_ = 0;
};

// The work request ids with this bit are the rail's own.
inline constexpr uint64_t kReceiveId = uint64_t{1} << 63;

}  // namespace nacre::verbs
