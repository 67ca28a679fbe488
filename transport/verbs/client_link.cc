#include "transport/verbs/client_link.h"

#include <absl/strings/str_format.h>

#include <algorithm>

#include "common/log.h"
#include "common/metrics.h"

namespace nacre::verbs {
namespace {

constexpr Duration kPingTimeout = std::chrono::seconds(2);

struct Counters {
  Counter& calls = GetCounter("transport.verbs.client.calls");
  Counter& timeouts = GetCounter("transport.verbs.client.timeouts");
  Counter& lost = GetCounter("transport.verbs.client.connections_lost");
};

Counters& Count() {
  static Counters counters;
  return counters;
}

}  // namespace

ClientLink::ClientLink(std::shared_ptr<Rail> rail, std::shared_ptr<ClientConnection> control,
                       std::shared_ptr<RegionTable> regions, std::string address, Executor executor,
                       Clock& clock)
    : Channel(std::move(rail), std::move(executor), clock, 0,
              IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE),
      control_(std::move(control)),
      regions_(std::move(regions)),
      address_(std::move(address)) {}

Task<Status> ClientLink::Establish(std::shared_ptr<ClientLink> self, Duration timeout) {
  auto expire = [weak = std::weak_ptr(self)](Duration now) {
    auto self = weak.lock();
    return self == nullptr ? kNoDeadline : self->Expire(now);
  };
  self->watchdog_ = std::make_shared<Watchdog>(self->executor(), self->clock(), std::move(expire));
  if (Status status = self->Open(); !status.ok()) {
    self->control_->Shutdown(status);
    co_return status;
  }
  Status status = co_await Attach(self, timeout);
  if (status.ok()) status = co_await Ping(self, kPingTimeout);
  if (!status.ok()) self->Shutdown(status);
  std::lock_guard lock(self->mutex_);
  self->open_ = status.ok() && !self->closing();
  co_return status;
}

Task<Status> ClientLink::Attach(std::shared_ptr<ClientLink> self, Duration timeout) {
  absl::AnyInvocable<void(const Status&)> closed = [weak = std::weak_ptr(self)](const Status& why) {
    if (auto self = weak.lock()) self->Shutdown(why);
  };
  std::string request = EncodeEndpoint(self->local());
  CO_ASSIGN_OR_RETURN(std::string reply,
                      co_await self->control_->Attach(std::move(request), timeout, std::move(closed)));
  CO_ASSIGN_OR_RETURN(Endpoint remote, ParseEndpoint(reply));
  if (remote.calls == 0) co_return ErrnoError(EPROTO, "it allows no calls");
  if (remote.link != self->rail().port().link)
    co_return ErrnoError(EPROTO, "it answers from another link layer");
  co_return self->Join(remote);
}

// That the queue pairs are joined does not say yet that packets find their way.
Task<Status> ClientLink::Ping(std::shared_ptr<ClientLink> self, Duration timeout) {
  if (!self->Send(FragmentKind::kPing, 0, 0, std::string())) co_return absl::UnavailableError("it has ended");
  auto expire = [pong = self->pong_, name = self->rail().port().name()] {
    pong.Set(
        absl::UnavailableError(absl::StrFormat("no RDMA packets arrive between %s and the server", name)));
  };
  auto timer = self->clock().After(self->executor(), timeout, std::move(expire));
  co_return co_await self->pong_.Wait();
}

StatusOr<std::string> ClientLink::Encode(const CallRequest& request) {
  std::vector<RemoteSpan> spans;
  spans.reserve(request.memory.size());
  for (const MemorySpan& span : request.memory) {
    if (span.length == 0) continue;
    ASSIGN_OR_RETURN(MemoryKeys keys, regions_->Find(rail().domain(), span.data(), span.length));
    spans.push_back({reinterpret_cast<uint64_t>(span.data()), span.length, keys.remote});
  }
  return EncodeCall(request.kind, spans, request.body);
}

bool ClientLink::Begin(const std::shared_ptr<LinkCall>& call) {
  uint64_t id = 0;
  {
    std::lock_guard lock(mutex_);
    if (!open_) return false;
    if (calls_.size() < remote().calls) {
      id = ++last_id_;
      calls_.emplace(id, call);
    } else {
      waiting_.push_back(call);
    }
  }
  Count().calls.Add();
  watchdog_->Arm(call->deadline);
  if (id != 0) Start(id, call);
  return true;
}

void ClientLink::Start(uint64_t id, const std::shared_ptr<LinkCall>& call) {
  StatusOr<std::string> message = Encode(call->request);
  if (!message.ok()) return End(id, message.status());
  Send(FragmentKind::kCall, 0, id, *std::move(message));  // if not, OnClosed has it
}

// A call's result; the next one that waits may go.
void ClientLink::End(uint64_t id, StatusOr<std::string> result) {
  std::shared_ptr<LinkCall> call, next;
  uint64_t next_id = 0;
  {
    std::lock_guard lock(mutex_);
    auto found = calls_.find(id);
    if (found == calls_.end()) return;
    call = std::move(found->second);
    calls_.erase(found);
    if (!waiting_.empty()) {
      next = std::move(waiting_.front());
      waiting_.pop_front();
      next_id = ++last_id_;
      calls_.emplace(next_id, next);
    }
  }
  call->result.Set(std::move(result));
  if (next != nullptr) Start(next_id, next);
}

Status ClientLink::OnMessage(const FragmentHeader& header, std::string message) {
  if (header.kind == FragmentKind::kPong) {
    pong_.Set(OkStatus());
    return OkStatus();
  }
  if (header.kind != FragmentKind::kReply || message.size() > kMaxBodySize) {
    return ErrnoError(EPROTO, absl::StrFormat("a message of kind %d and %d bytes came to a client",
                                              header.kind, message.size()));
  }
  {
    std::lock_guard lock(mutex_);
    if (!calls_.contains(header.call_id)) {
      return ErrnoError(EPROTO,
                        absl::StrFormat("a reply to call %#x, which is not in progress", header.call_id));
    }
  }
  if (header.flags == kReplyFailed) {
    End(header.call_id, absl::InternalError(message));
  } else {
    End(header.call_id, std::move(message));
  }
  return OkStatus();
}

Status ClientLink::TimedOut() const {
  return ErrnoError(ETIMEDOUT, absl::StrFormat("%s did not answer in time", address_));
}

// Ends what has waited for too long, and the whole link if a call under way has expired: the server could
// still write into its memory.
Duration ClientLink::Expire(Duration now) {
  std::vector<std::shared_ptr<LinkCall>> unsent;
  Duration next = kNoDeadline;
  bool expired = false;
  {
    std::lock_guard lock(mutex_);
    for (const auto& call : waiting_) {
      if (call->deadline <= now) unsent.push_back(call);
      if (call->deadline > now) next = std::min(next, call->deadline);
    }
    std::erase_if(waiting_, [&](const auto& call) { return call->deadline <= now; });
    for (const auto& [id, call] : calls_) {
      call->timed_out = call->deadline <= now;
      expired = expired || call->timed_out;
      if (!call->timed_out) next = std::min(next, call->deadline);
    }
  }
  Count().timeouts.Add(static_cast<int64_t>(unsent.size()) + (expired ? 1 : 0));
  for (const auto& call : unsent) call->result.Set(TimedOut());
  if (!expired) return next;
  Shutdown(ErrnoError(ECONNRESET, "closed because another call over it timed out"));
  return kNoDeadline;
}

void ClientLink::OnClosed(const Status& why) {
  std::vector<std::shared_ptr<LinkCall>> calls;
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(open_, false)) Count().lost.Add();
    for (auto& [id, call] : calls_) calls.push_back(std::move(call));
    calls.insert(calls.end(), waiting_.begin(), waiting_.end());
    calls_.clear();
    waiting_.clear();
  }
  watchdog_->Stop();
  pong_.Set(why);
  control_->Shutdown(why);
  if (why.code() == absl::StatusCode::kInvalidArgument) {
    LogWarning("data plane: closed the RDMA connection to %s: %s", address_, why.message());
  }
  const Status unavailable =
      ErrnoError(ECONNRESET, absl::StrFormat("lost the RDMA connection to %s: %s", address_, why.message()));
  for (const auto& call : calls) call->result.Set(call->timed_out ? TimedOut() : unavailable);
}

}  // namespace nacre::verbs
