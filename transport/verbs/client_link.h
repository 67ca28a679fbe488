// The client's end of one queue pair: sends calls with the keys of their memory, and ends them. Puts into few
// bytes of host memory come with the reply and are copied, which takes less than opening memory to the server
// does. Where the device has memory windows, a call's memory is shown through some that are bound before the
// call is sent and taken back before it is reported finished; else, and for memory of GPUs, the keys are the
// regions'. A call that times out ends the link before it fails, since the server could otherwise still write
// into its memory; so does the loss of the control connection. Thread-safe. Calls beyond the rail's budget of
// puts, the server's limit, or the windows wait here in order, small ones (put_budget.h) before the others.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <deque>
#include <memory>
#include <mutex>
#include <string>

#include "transport/path_meter.h"
#include "transport/tcp/client_connection.h"
#include "transport/verbs/channel.h"
#include "transport/verbs/rail_set.h"
#include "transport/verbs/regions.h"
#include "transport/verbs/windows.h"
#include "transport/watchdog.h"

namespace nacre::verbs {

// One call under way.
struct LinkCall {
  LinkCall(CallRequest request, Duration deadline);

  bool small() const { return bytes <= kSmallCall; }
  // Takes its part of the rail's budget of puts first.
  bool reserves() const { return request.kind == CallMemory::kPutTarget && !with_reply; }
  // Until TakeMemoryBack, even if there is a result.
  bool holds_memory() const { return !windows.empty() || !held.empty(); }
  bool given_up() const { return IsGivenUp(request.given_up); }
  bool HasExpired(Duration now) const { return deadline <= now || given_up(); }

  CallRequest request;
  const uint64_t bytes;   // of its memory
  const bool with_reply;  // what is put comes in the reply
  const Duration deadline;
  const OneShot<StatusOr<std::string>> result;

  // The rest is the link's.
  RemoteSpans spans;
  WindowPlan plan;
  std::vector<WindowBinding> windows;  // from when the call is sent until its memory is taken back
  std::vector<std::shared_ptr<const Registration>> held;  // of a device's memory, until then
  bool sent = false, timed_out = false;  // under the link's mutex; fixed when there is a result
};

class ClientLink : public Channel {
 public:
  static constexpr size_t kWindowsOfLink = 64;

  ClientLink(std::shared_ptr<Rail> rail, std::shared_ptr<ClientConnection> control,
             std::shared_ptr<RegionTable> regions, std::string address, Executor executor, Clock& clock,
             std::shared_ptr<PathMeter> meter);

  // Before Establish: `ended` is called once when the link has ended. Keeping the link keeps the device open.
  void OnEnd(absl::AnyInvocable<void()> ended) { ended_ = std::move(ended); }

  // Likewise: whether there is another way to the server, which makes this link give up the sooner when its
  // packets do not arrive any more.
  void OnStuck(absl::AnyInvocable<bool()> has_other_way) { has_other_way_ = std::move(has_other_way); }

  // Agrees with the server over the control connection on a queue pair to the port of its that is wanted
  // (none: any), and sees whether packets arrive. On error the link has ended, as has the control connection.
  // First, once.
  static Task<Status> Establish(std::shared_ptr<ClientLink> self, std::shared_ptr<RailSet> rails,
                                std::optional<RemotePort> wanted, Duration timeout);

  // Peer::EndGivenUp. Calls that wait to reserve are cancelled all, with UNAVAILABLE: they find a link again.
  void EndGivenUp();

  PathMeter& meter() { return *meter_; }
  // Of calls under way, for whoever chooses among links.
  std::atomic<uint64_t>& load() { return load_; }

  // First for each call that reserves: waits until its server may put so much. UNAVAILABLE: the link is
  // ending.
  static Task<StatusOr<PutBudget::Share>> Reserve(std::shared_ptr<ClientLink> self,
                                                  std::shared_ptr<LinkCall> call);
  // Begun: the call will have a result, with UNAVAILABLE too if it was never sent when the link ends (see
  // LinkCall::sent). Else nothing was done: the link is ending, or memory of the call is not registered with
  // the device yet, which the caller has to see to first (RailSet::RegisterMemory).
  enum class Beginning { kBegun, kEnding, kUnregistered };
  Beginning Begin(const std::shared_ptr<LinkCall>& call);
  // Then, if it holds memory: returns once nobody can touch that any more. The error is one of the result's.
  static Task<Status> TakeMemoryBack(std::shared_ptr<ClientLink> self, std::shared_ptr<LinkCall> call,
                                     bool succeeded);

 private:
  using Started = std::vector<std::pair<uint64_t, std::shared_ptr<LinkCall>>>;

  static Task<Status> Attach(std::shared_ptr<ClientLink> self, std::shared_ptr<RailSet> rails,
                             std::optional<RemotePort> wanted, Duration timeout);
  static Task<Status> Ping(std::shared_ptr<ClientLink> self, std::vector<WindowBinding> windows,
                           Duration timeout);
  static Task<Status> TryOut(std::shared_ptr<ClientLink> self);
  Status OnMessage(const FragmentHeader& header, std::string_view message) override;
  void OnClosed(const Status& why) override;
  void OnRefused(const FragmentHeader& header, size_t bound, const Status& why) override;
  void OnTick(Duration now) override;
  Status FreeWindows() override;

  Status MakeWindows();
  std::optional<Status> Prepare(LinkCall* call);          // none: memory of the call is not registered yet
  bool HasRoom(const LinkCall& call) const;               // under mutex_
  uint64_t Admit(const std::shared_ptr<LinkCall>& call);  // under mutex_; 0: there is no room yet
  Started AdmitWaiting();                                 // under mutex_
  void Start(uint64_t id, const std::shared_ptr<LinkCall>& call);
  void Start(const Started& calls);
  void TakeBack(LinkCall* call);
  OneShot<Unit> Closed();
  std::shared_ptr<LinkCall> TakeOut(uint64_t id, Started* started);
  bool End(uint64_t id, StatusOr<std::string> result);
  Status EndWithData(uint64_t id, std::string_view message);
  Duration Expire(Duration now);
  Status TimedOut() const;

  const std::shared_ptr<ClientConnection> control_;
  const std::shared_ptr<RegionTable> regions_;
  const std::string address_;
  const std::shared_ptr<PathMeter> meter_;
  std::atomic<uint64_t> load_ = 0;
  absl::AnyInvocable<void()> ended_;
  absl::AnyInvocable<bool()> has_other_way_;
  const OneShot<Status> pong_;
  std::shared_ptr<Watchdog> watchdog_;
  std::mutex mutex_;
  bool open_ = false, was_open_ = false, closed_ = false;
  std::vector<OneShot<Unit>> closed_waiters_;
  std::unique_ptr<WindowPool> windows_;  // null: none are used
  uint64_t last_id_ = 0;
  absl::flat_hash_map<uint64_t, std::shared_ptr<LinkCall>> calls_;
  using Queue = std::deque<std::shared_ptr<LinkCall>>;
  Queue small_waiting_, large_waiting_;  // for room
};

}  // namespace nacre::verbs
