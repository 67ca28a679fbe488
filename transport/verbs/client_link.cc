#include "transport/verbs/client_link.h"

#include <absl/container/inlined_vector.h>
#include <absl/strings/str_format.h>

#include <algorithm>

#include "common/log.h"
#include "common/metrics.h"
#include "transport/memory.h"
#include "transport/memory_device.h"

namespace nacre::verbs {
namespace {

constexpr Duration kStuckTimeout = std::chrono::seconds(3);
constexpr size_t kMaxWindowsPerCall = 8;  // unless its memory is in more regions
constexpr size_t kPartOfSmall = 4;        // large calls leave this part of windows and calls to small ones

struct Counters {
  Counter& calls = GetCounter("transport.verbs.client.calls");
  Counter& timeouts = GetCounter("transport.verbs.client.timeouts");
  Counter& lost = GetCounter("transport.verbs.client.connections_lost");
};

Counters& Count() {
  static Counters counters;
  return counters;
}

uint64_t TotalLength(const std::vector<MemorySpan>& memory) {
  uint64_t total = 0;
  for (const MemorySpan& span : memory) total += span.length;
  return total;
}

void CopyInto(const FlatMemory& memory, const DataReply& reply) {
  std::string_view data = reply.data;
  for (const DataRange& range : reply.ranges) {
    if (range.length == 0) continue;
    absl::InlinedVector<iovec, 4> pieces;
    memory.AppendPieces(range.offset, range.length, &pieces);
    const iovec source{const_cast<char*>(data.data()), range.length};
    CopyPieces(pieces, std::span(&source, 1));
    data.remove_prefix(range.length);
  }
}

bool ComesWithReply(const CallRequest& request, uint64_t bytes) {
  return request.kind == CallMemory::kPutTarget && bytes > 0 && bytes <= kMaxWithReply &&
         request.memory.front().region->device() == nullptr;
}

Status NotInProgress(uint64_t id) {
  return ErrnoError(EPROTO, absl::StrFormat("a reply to call %#x, which is not in progress", id));
}

}  // namespace

LinkCall::LinkCall(CallRequest request, Duration deadline)
    : request(std::move(request)),
      bytes(TotalLength(this->request.memory)),
      with_reply(ComesWithReply(this->request, bytes)),
      deadline(deadline) {}

ClientLink::ClientLink(std::shared_ptr<Rail> rail, std::shared_ptr<ClientConnection> control,
                       std::shared_ptr<RegionTable> regions, std::string address, Executor executor,
                       Clock& clock, std::shared_ptr<PathMeter> meter)
    : Channel(std::move(rail), std::move(executor), clock, 0,
              IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE),
      control_(std::move(control)),
      regions_(std::move(regions)),
      address_(std::move(address)),
      meter_(std::move(meter)) {}

// Finds out how the device calls the memory, and through which windows it is to be shown.
std::optional<Status> ClientLink::Prepare(LinkCall* call) {
  std::vector<RegisteredPiece> pieces;
  call->spans.clear();
  call->held.clear();
  call->plan = WindowPlan();
  if (call->with_reply) {
    call->spans.push_back({0, call->bytes, 0});
    return OkStatus();
  }
  const MemoryRegion* last_of_device = nullptr;
  for (const MemorySpan& span : call->request.memory) {
    if (span.length == 0) continue;
    const auto address = reinterpret_cast<uint64_t>(span.data());
    if (span.region.get() == last_of_device) {  // to ask the device once
      call->spans.push_back({address, span.length, call->spans.back().key});
      continue;
    }
    std::optional<StatusOr<MemoryKeys>> known = regions_->FindKnownSpan(*rail().domain(), span);
    if (!known) return std::nullopt;
    ASSIGN_OR_RETURN(MemoryKeys keys, *std::move(known));
    call->spans.push_back({address, span.length, keys.remote});
    if (keys.held == nullptr) {
      pieces.push_back({keys.region, address, span.length});
    } else {
      last_of_device = span.region.get();
      call->held.push_back(std::move(keys.held));
    }
  }
  if (call->spans.size() > kMaxSpans) {
    return ErrnoError(EINVAL, absl::StrFormat("a call with memory in %d pieces; over RDMA %d are the most",
                                              call->spans.size(), kMaxSpans));
  }
  if (!rail().domain()->windows()) return OkStatus();
  call->plan = PlanWindows(pieces, kMaxWindowsPerCall);
  for (const RegisteredPiece& stretch : call->plan.stretches) {
    if (stretch.length <= kLongestWindow) continue;
    return ErrnoError(ENOTSUP,
                      absl::StrFormat("a call with %d bytes of memory in one piece; over RDMA %d are "
                                      "the most",
                                      stretch.length, kLongestWindow));
  }
  if (call->plan.stretches.size() <= kWindowsOfLink) return OkStatus();
  return ErrnoError(ENOTSUP, absl::StrFormat("a call with memory in %d places that lie far apart; over RDMA "
                                             "%d are the most",
                                             call->plan.stretches.size(), kWindowsOfLink));
}

Task<StatusOr<PutBudget::Share>> ClientLink::Reserve(std::shared_ptr<ClientLink> self,
                                                     std::shared_ptr<LinkCall> call) {
  std::shared_ptr<PutBudget> puts = self->rail().puts();
  const OneShot<Status> granted;
  if (!puts->Take(call->bytes, self.get(), granted)) {
    self->meter_->Waits();
    // A link that ends after this has been asked for cancels it.
    if (self->closing()) granted.Set(absl::UnavailableError("the RDMA connection has ended"));
    auto expire = [granted, late = self->TimedOut()] { granted.Set(late); };
    auto timer =
        self->clock().After(self->executor(), call->deadline - self->clock().Now(), std::move(expire));
    CO_RETURN_IF_ERROR(co_await granted.Wait());
  }
  co_return PutBudget::Share(std::move(puts), call->bytes, self.get());
}

ClientLink::Beginning ClientLink::Begin(const std::shared_ptr<LinkCall>& call) {
  std::optional<Status> prepared = Prepare(call.get());
  if (!prepared) return Beginning::kUnregistered;
  if (!prepared->ok()) {
    call->result.Set(*std::move(prepared));
    return Beginning::kBegun;
  }
  uint64_t id = 0;
  {
    std::lock_guard lock(mutex_);
    if (!open_) return Beginning::kEnding;
    Queue& waiting = call->small() ? small_waiting_ : large_waiting_;
    if (waiting.empty()) id = Admit(call);
    if (id == 0) waiting.push_back(call);
  }
  if (id == 0) meter_->Waits();
  Count().calls.Add();
  watchdog_->Arm(call->given_up() ? kNow : call->deadline);
  if (id != 0) Start(id, call);
  return Beginning::kBegun;
}

bool ClientLink::HasRoom(const LinkCall& call) const {
  const size_t calls = remote().calls, wanted = call.plan.stretches.size();
  const size_t kept_calls = call.small() ? 0 : calls / kPartOfSmall;
  const size_t kept_windows =
      call.small() ? 0 : std::min(kWindowsOfLink / kPartOfSmall, kWindowsOfLink - wanted);
  if (calls_.size() + kept_calls >= calls) return false;
  return wanted == 0 || windows_->available() >= wanted + kept_windows;
}

uint64_t ClientLink::Admit(const std::shared_ptr<LinkCall>& call) {
  if (!HasRoom(*call)) return 0;
  const auto& stretches = call->plan.stretches;
  const bool put = call->request.kind == CallMemory::kPutTarget;
  for (const RegisteredPiece& stretch : stretches) {
    call->windows.push_back(
        BindTo(windows_->Take(), stretch, put ? IBV_ACCESS_REMOTE_WRITE : IBV_ACCESS_REMOTE_READ));
  }
  for (size_t i = 0; !stretches.empty() && i < call->spans.size(); ++i) {
    call->spans[i].key = call->windows[call->plan.stretch_of[i]].key;
  }
  call->sent = true;
  calls_.emplace(++last_id_, call);
  return last_id_;
}

ClientLink::Started ClientLink::AdmitWaiting() {
  Started started;
  for (Queue* waiting : {&small_waiting_, &large_waiting_}) {
    while (open_ && !waiting->empty()) {
      const uint64_t id = Admit(waiting->front());
      if (id == 0) break;
      started.emplace_back(id, std::move(waiting->front()));
      waiting->pop_front();
    }
  }
  return started;
}

void ClientLink::Start(uint64_t id, const std::shared_ptr<LinkCall>& call) {
  StatusOr<std::string> message =
      EncodeCall(call->request.kind, call->spans, call->request.body, call->with_reply);
  if (message.ok()) {
    Send(FragmentKind::kCall, 0, id, *std::move(message), call->windows);  // if not, OnClosed has it
  } else {
    End(id, message.status());
  }
}

// The windows that were bound are taken back with the call's memory; the others nobody has.
void ClientLink::OnRefused(const FragmentHeader& header, size_t bound, const Status& why) {
  if (header.kind == FragmentKind::kPing) {
    pong_.Set(why);
    return;
  }
  Started started;
  std::shared_ptr<LinkCall> call;
  {
    std::lock_guard lock(mutex_);
    auto found = calls_.find(header.call_id);
    if (found == calls_.end()) return;
    call = std::move(found->second);
    calls_.erase(found);
    for (size_t i = bound; windows_ != nullptr && i < call->windows.size(); ++i)
      windows_->Return(call->windows[i].window);
    call->windows.resize(bound);
    call->sent = false;
    started = AdmitWaiting();
  }
  call->result.Set(why);
  Start(started);
}

void ClientLink::Start(const Started& calls) {
  for (const auto& [id, call] : calls) Start(id, call);
}

// The call, for whoever is to set its result; others that wait may go. Null: it has ended.
std::shared_ptr<LinkCall> ClientLink::TakeOut(uint64_t id, Started* started) {
  std::lock_guard lock(mutex_);
  auto found = calls_.find(id);
  if (found == calls_.end()) return nullptr;
  std::shared_ptr<LinkCall> call = std::move(found->second);
  calls_.erase(found);
  *started = AdmitWaiting();
  return call;
}

// False: there is no such call.
bool ClientLink::End(uint64_t id, StatusOr<std::string> result) {
  Started started;
  const std::shared_ptr<LinkCall> call = TakeOut(id, &started);
  if (call == nullptr) return false;
  call->result.Set(std::move(result));
  Start(started);
  return true;
}

// The call's memory stays until it has its result.
Status ClientLink::EndWithData(uint64_t id, std::string_view message) {
  Started started;
  const std::shared_ptr<LinkCall> call = TakeOut(id, &started);
  if (call == nullptr) return NotInProgress(id);
  StatusOr<DataReply> reply = ParseDataReply(message, call->with_reply ? call->bytes : 0);
  if (reply.ok()) {
    CopyInto(FlatMemory(std::move(call->request.memory)), *reply);
    call->result.Set(std::string(reply->body));
  } else {
    call->result.Set(absl::UnavailableError(reply.status().message()));
  }
  Start(started);
  return reply.status();
}

Task<Status> ClientLink::TakeMemoryBack(std::shared_ptr<ClientLink> self, std::shared_ptr<LinkCall> call,
                                        bool succeeded) {
  const std::shared_ptr<MemoryDevice> device = call->request.memory.front().region->device();
  call->held.clear();
  if (device != nullptr && succeeded) CO_RETURN_IF_ERROR(device->FlushRemoteWrites());
  if (call->windows.empty()) co_return OkStatus();
  Transfer back;
  back.opcode = IBV_WR_LOCAL_INV;
  back.parts.resize(call->windows.size());
  for (size_t i = 0; i < back.parts.size(); ++i) back.parts[i].remote_key = call->windows[i].key;
  Status status = co_await self->Run(&back);
  if (status.ok()) {
    self->TakeBack(call.get());
  } else {
    OneShot<Unit> closed = self->Closed();
    co_await closed.Wait();
  }
  co_return OkStatus();
}

void ClientLink::TakeBack(LinkCall* call) {
  Started started;
  {
    std::lock_guard lock(mutex_);
    if (windows_ == nullptr) return;
    for (const WindowBinding& binding : call->windows) windows_->Return(binding.window);
    started = AdmitWaiting();
  }
  Start(started);
}

OneShot<Unit> ClientLink::Closed() {
  OneShot<Unit> closed;
  std::lock_guard lock(mutex_);
  if (closed_) {
    closed.Set({});
  } else {
    closed_waiters_.push_back(closed);
  }
  return closed;
}

Status ClientLink::FreeWindows() {
  std::unique_ptr<WindowPool> windows;
  {
    std::lock_guard lock(mutex_);
    open_ = false;
    windows = std::move(windows_);
  }
  return windows == nullptr ? OkStatus() : windows->Free();
}

Status ClientLink::OnMessage(const FragmentHeader& header, std::string_view message) {
  if (header.kind == FragmentKind::kPong) {
    pong_.Set(OkStatus());
    return OkStatus();
  }
  if (header.kind != FragmentKind::kReply || (header.flags != kReplyData && message.size() > kMaxBodySize)) {
    return ErrnoError(EPROTO, absl::StrFormat("a message of kind %d and %d bytes came to a client",
                                              header.kind, message.size()));
  }
  if (header.flags == kReplyData) return EndWithData(header.call_id, message);
  const bool failed = header.flags == kReplyFailed;
  StatusOr<std::string> result = failed ? StatusOr<std::string>(absl::InternalError(AbslView(message)))
                                        : StatusOr<std::string>(std::string(message));
  if (End(header.call_id, std::move(result))) return OkStatus();
  return NotInProgress(header.call_id);
}

// A packet is answered within microseconds, whatever the server does about it; a device says that one is lost
// after ten seconds and more. The transfer that is stuck may be the server's work, of which this end has
// none: so it asks while it waits.
void ClientLink::OnTick(Duration now) {
  Channel::OnTick(now);
  bool waiting = false;
  {
    std::lock_guard lock(mutex_);
    waiting = open_ && !calls_.empty();
  }
  if (waiting && stuck() == Duration::zero() && queued_messages() == 0) {
    Send(FragmentKind::kPing, 0, 0, std::string());
  }
  if (stuck() < kStuckTimeout || !has_other_way_ || !has_other_way_()) return;
  Shutdown(absl::UnavailableError(
      absl::StrFormat("packets do not arrive any more between %s and the server", rail().port().name())));
}

Status ClientLink::TimedOut() const {
  return ErrnoError(ETIMEDOUT, absl::StrFormat("%s did not answer in time", address_));
}

void ClientLink::EndGivenUp() {
  watchdog_->Arm(kNow);
  rail().puts()->Cancel(this, absl::UnavailableError("the RDMA connection is not waited for any more"));
}

// Ends what has waited for too long or is given up, and the whole link if a call under way has expired: the
// server could still write into its memory.
Duration ClientLink::Expire(Duration now) {
  std::vector<std::shared_ptr<LinkCall>> unsent;
  Duration next = kNoDeadline;
  bool expired = false;
  {
    std::lock_guard lock(mutex_);
    for (Queue* waiting : {&small_waiting_, &large_waiting_}) {
      for (const auto& call : *waiting) {
        if (!call->HasExpired(now)) next = std::min(next, call->deadline);
      }
      auto expired_ones = std::stable_partition(waiting->begin(), waiting->end(),
                                                [&](const auto& call) { return !call->HasExpired(now); });
      unsent.insert(unsent.end(), expired_ones, waiting->end());
      waiting->erase(expired_ones, waiting->end());
    }
    for (const auto& [id, call] : calls_) {
      call->timed_out = call->HasExpired(now);
      expired = expired || call->timed_out;
      if (!call->timed_out) next = std::min(next, call->deadline);
    }
  }
  Count().timeouts.Add(static_cast<int64_t>(unsent.size()) + (expired ? 1 : 0));
  for (const auto& call : unsent) call->result.Set(TimedOut());
  if (!expired) return next;
  Shutdown(ErrnoError(ECONNRESET, "closed because another call over it timed out or was given up"));
  return kNoDeadline;
}

void ClientLink::OnClosed(const Status& why) {
  std::vector<std::shared_ptr<LinkCall>> calls;
  std::vector<OneShot<Unit>> waiters;
  {
    std::lock_guard lock(mutex_);
    open_ = false;
    closed_ = true;
    if (was_open_) Count().lost.Add();
    if (was_open_) meter_->AddConnection(-1);
    waiters.swap(closed_waiters_);
    for (auto& [id, call] : calls_) calls.push_back(std::move(call));
    for (Queue* waiting : {&small_waiting_, &large_waiting_}) {
      calls.insert(calls.end(), waiting->begin(), waiting->end());
      waiting->clear();
    }
    calls_.clear();
  }
  watchdog_->Stop();
  pong_.Set(why);
  control_->Shutdown(why);
  if (why.code() == absl::StatusCode::kInvalidArgument) {
    LogWarning("data plane: closed the RDMA connection to %s: %s", address_, why.message());
  } else if (!calls.empty()) {
    LogInfo("data plane: lost the RDMA connection to %s with %d calls under way: %s", address_, calls.size(),
            why.message());
  }
  const Status unavailable =
      ErrnoError(ECONNRESET, absl::StrFormat("lost the RDMA connection to %s: %s", address_, why.message()));
  rail().puts()->Cancel(this, unavailable);
  for (const auto& call : calls) call->result.Set(call->timed_out ? TimedOut() : unavailable);
  for (const OneShot<Unit>& waiter : waiters) waiter.Set({});
  if (ended_) ended_();
}

}  // namespace nacre::verbs
