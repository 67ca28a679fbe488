#include "rpc/object_stub.h"

#include <absl/strings/str_format.h>

#include <algorithm>
#include <cerrno>

#include "common/log.h"
#include "rpc/convert.h"
#include "rpc/mutation.h"
#include "rpc/read_messages.h"

namespace nacre {

uint64_t ObjectSequences::Begin(OstIndex ost) {
  std::lock_guard lock(mutex_);
  Sequencer& sequencer = sequencers_.try_emplace(ost, Sequencer{first_, {}}).first->second;
  sequencer.unanswered.insert(sequencer.next);
  return sequencer.next++;
}

void ObjectSequences::End(OstIndex ost, uint64_t sequence) {
  std::lock_guard lock(mutex_);
  sequencers_.at(ost).unanswered.erase(sequence);
}

uint64_t ObjectSequences::LowWater(OstIndex ost) const {
  std::lock_guard lock(mutex_);
  const Sequencer& sequencer = sequencers_.at(ost);
  return sequencer.unanswered.empty() ? sequencer.next : *sequencer.unanswered.begin();
}

ObjectStub::ObjectStub(std::shared_ptr<Peer> peer, Clock& clock, SessionId session,
                       std::shared_ptr<ObjectSequences> sequences, RetryPolicy policy, uint64_t mdt_epoch)
    : clock_(clock),
      session_(session),
      policy_(policy),
      mdt_epoch_(mdt_epoch),
      way_{std::move(peer)},
      sequences_(std::move(sequences)) {}

void ObjectStub::SetPeer(std::shared_ptr<Peer> peer) {
  Way old{std::move(peer)};  // the new one, until they are swapped
  {
    std::lock_guard lock(mutex_);
    if (way_.peer == old.peer) return;
    std::swap(way_, old);
  }
  old.End(ErrnoError(ECONNRESET, "another server is asked from now on"));
}

void ObjectStub::Way::End(Status why) const {
  replaced->store(true);
  over->Cancel(std::move(why));
  peer->EndGivenUp();
}

ObjectStub::Way ObjectStub::way() const {
  std::lock_guard lock(mutex_);
  return way_;
}

std::shared_ptr<Peer> ObjectStub::peer() const { return way().peer; }

void ObjectStub::Close() {
  Way way;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    way = way_;
  }
  way.peer->Close();
  way.over->Cancel(ErrnoError(ESHUTDOWN, "closed by this side"));
}

void ObjectStub::End(Status why) {
  Way way;
  {
    std::lock_guard lock(mutex_);
    ended_ = why;
    way = way_;
  }
  way.End(std::move(why));
}

Status ObjectStub::ended() const {
  std::lock_guard lock(mutex_);
  return ended_;
}

bool ObjectStub::closed() const {
  std::lock_guard lock(mutex_);
  return closed_;
}

Task<StatusOr<proto::ObjectReply>> ObjectStub::Call(proto::ObjectRequest request, CallMemory kind,
                                                    std::vector<MemorySpan> memory,
                                                    CancellationPtr cancellation, BlockSumsPtr sums) {
  request.set_session(session_);
  request.set_mdt_epoch(mdt_epoch_);
  if (!IsMutation(request)) {
    co_return co_await Repeat(std::move(request), kind, std::move(memory), std::move(cancellation),
                              std::move(sums));
  }
  OstIndex ost = request.ost();
  uint64_t sequence = sequences_->Begin(ost);
  request.set_sequence(sequence);
  auto reply =
      co_await Repeat(std::move(request), kind, std::move(memory), std::move(cancellation), std::move(sums));
  sequences_->End(ost, sequence);
  co_return reply;
}

Task<StatusOr<proto::ObjectReply>> ObjectStub::CallOnce(proto::ObjectRequest request, CallMemory kind,
                                                        std::vector<MemorySpan> memory, Duration timeout,
                                                        BlockSumsPtr sums) {
  request.set_session(session_);
  request.set_mdt_epoch(mdt_epoch_);
  const Way way = this->way();
  CO_RETURN_IF_ERROR(ended());  // if it ends behind this, the way's flag is set
  co_return co_await Attempt(way, request, kind, std::move(memory), timeout, std::move(sums));
}

Task<StatusOr<proto::ObjectReply>> ObjectStub::Repeat(proto::ObjectRequest request, CallMemory kind,
                                                      std::vector<MemorySpan> memory,
                                                      CancellationPtr cancellation, BlockSumsPtr sums) {
  const Duration begin = clock_.Now();
  Duration pause = policy_.pause;
  Duration timeout = policy_.call_timeout;
  while (true) {
    CO_RETURN_IF_ERROR(ended());
    if (!policy_.hard)
      timeout = std::clamp<Duration>(policy_.soft_timeout - (clock_.Now() - begin), 1ms, timeout);
    if (cancellation != nullptr) {
      CO_RETURN_IF_ERROR(cancellation->status());
      timeout = std::clamp<Duration>(cancellation->deadline() - clock_.Now(), 1ms, timeout);
    }
    if (request.sequence() != 0) request.set_low_water(sequences_->LowWater(request.ost()));
    const Way way = this->way();
    auto reply = co_await Attempt(way, request, kind, memory, timeout, sums);
    if (reply.ok() || !IsRetryable(reply.status())) {
      if (request.has_read()) ReadMessages<proto::ReadObjects>::Keep(request.release_read());
      co_return reply;
    }
    if (closed())
      co_return ErrnoError(ESHUTDOWN,
                           "the connection to " + way.peer->address() + " was closed by this side");
    const Duration waited = clock_.Now() - begin;
    if (!policy_.hard && waited + pause >= policy_.soft_timeout) {
      co_return ErrnoError(
          EIO, absl::StrFormat("OST %d at %s did not answer for %d s (soft timeout): %s", request.ost(),
                               way.peer->address(), waited / 1s, std::string(reply.status().message())));
    }
    LogDebug("OST %d at %s: %s; trying again", request.ost(), way.peer->address(),
             std::string(reply.status().message()));
    co_await SleepUnlessCancelled(clock_, pause, cancellation, way.over);
    pause = way.replaced->load() ? policy_.pause : std::min(2 * pause, policy_.max_pause);
  }
}

Task<StatusOr<proto::ObjectReply>> ObjectStub::Attempt(Way way, const proto::ObjectRequest& request,
                                                       CallMemory kind, std::vector<MemorySpan> memory,
                                                       Duration timeout, BlockSumsPtr sums) {
  if (sums != nullptr) sums->Reset();
  CallRequest call;
  call.sums = std::move(sums);
  call.given_up = way.replaced;
  call.kind = kind;
  call.memory = std::move(memory);
  if (!request.SerializeToString(&call.body) || call.body.size() > kMaxBodySize) {
    co_return ErrnoError(EMSGSIZE,
                         absl::StrFormat("a request of %d bytes to OST %d is beyond the limit of %d",
                                         request.ByteSizeLong(), request.ost(), kMaxBodySize));
  }
  CO_ASSIGN_OR_RETURN(std::string body, co_await way.peer->Call(std::move(call), timeout));
  proto::ObjectReply reply;
  if (request.has_read()) {
    const int ranges = request.read().ranges_size();
    reply.set_allocated_read(ReadMessages<proto::ReadObjectsReply>::Take(ranges));
  }
  if (!reply.MergeFromString(body)) {
    co_return ErrnoError(EIO, absl::StrFormat("the reply of OST %d at %s (%d bytes) is malformed",
                                              request.ost(), way.peer->address(), body.size()));
  }
  Status status = FromProto(reply.status());
  if (!status.ok() && reply.mdt_epoch() != 0) status = ErrnoError(ENOTCONN, std::string(status.message()));
  CO_RETURN_IF_ERROR(status);
  co_return reply;
}

}  // namespace nacre
