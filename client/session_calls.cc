// Calls of a session: each is sent over whichever stream there is, and again when that is lost.
#include <algorithm>
#include <cerrno>

#include "client/session.h"
#include "common/cancellation.h"
#include "rpc/convert.h"
#include "rpc/mutation.h"

namespace nacre::client {

// One mutation that waits for long must not make the MDS keep the answers to all that come after it: now and
// then it is told which those are.
void Session::Acknowledge(proto::MetadataRequest* request) {
  constexpr uint64_t kEvery = 1024;
  request->set_low_water(LowWater());
  request->clear_answered_below();
  request->clear_unanswered();
  if (next_sequence_ - std::max(LowWater(), acknowledged_) < kEvery) return;
  acknowledged_ = next_sequence_;
  request->set_answered_below(next_sequence_);
  for (uint64_t sequence : unanswered_) {
    const int last = request->unanswered_size() - 1;
    if (last >= 0 && request->unanswered(last).end() == sequence) {
      request->mutable_unanswered(last)->set_end(sequence + 1);
      continue;
    }
    proto::SequenceRange* range = request->add_unanswered();
    range->set_begin(sequence);
    range->set_end(sequence + 1);
  }
}

Task<StatusOr<Session::Turn>> Session::WaitConnected(uint64_t epoch, Duration begin, bool may_give_up) {
  for (;;) {
    OneShot<Unit> change;
    {
      std::lock_guard lock(mutex_);
      CO_RETURN_IF_ERROR(Check(epoch));
      if (state_ == State::kConnected) co_return Turn{channel_, connection_, id_, OrdersBatchesLocked()};
      CO_RETURN_IF_ERROR(refusal_);
      waiters_.push_back(change);
    }
    std::unique_ptr<TimerHandle> timer;
    if (!policy_.hard) {
      Duration left = policy_.soft_timeout - (clock_.Now() - begin);
      if (left <= 0ns) {
        co_return ErrnoError(EIO, absl::StrFormat("the MDS at %s did not answer for %d s (soft timeout)",
                                                  connector_->address(), policy_.soft_timeout / 1s));
      }
      timer = clock_.After(executor_, left, [change] { change.Set({}); });
    }
    if (may_give_up) {
      CO_RETURN_IF_ERROR(co_await WaitUnlessCancelled(change));
    } else {
      co_await change.Wait();
    }
  }
}

bool Session::connected() const {
  std::lock_guard lock(mutex_);
  return state_ == State::kConnected;
}

Task<Status> Session::WaitForStream() {
  StatusOr<Turn> turn = co_await WaitConnected(epoch(), clock_.Now(), true);
  co_return turn.status();
}

void Session::Number(uint64_t epoch, proto::MetadataRequest* mutation) {
  std::lock_guard lock(mutex_);
  if (epoch != epoch_) return;
  mutation->set_sequence(next_sequence_++);
  unanswered_.insert(mutation->sequence());
}

// Leaves out what the batch follows if that has been answered since. Returns what to wait for before the
// batch may be sent, if the turn's server knows nothing of the order: one that has taken over while servers
// are upgraded.
std::optional<OneShot<Unit>> Session::SetAfter(const Turn& turn, proto::MetadataRequest* request) {
  const uint64_t after = request->batch().after();
  if (after == 0) return std::nullopt;
  if (!unanswered_.contains(after)) {
    request->mutable_batch()->clear_after();
    return std::nullopt;
  }
  if (turn.orders_batches) return std::nullopt;
  return waiters_.emplace_back();
}

void Session::Answered(const proto::MetadataRequest& request) {
  unanswered_.erase(request.sequence());
  for (const proto::MetadataRequest& one : request.batch().requests()) unanswered_.erase(one.sequence());
  Wake();  // a batch may wait for this one (SetAfter)
}

bool Session::OrdersBatches() const {
  std::lock_guard lock(mutex_);
  return OrdersBatchesLocked();
}

Task<StatusOr<proto::MetadataReply>> Session::Call(uint64_t epoch, proto::MetadataRequest request) {
  if (IsMutation(request)) Number(epoch, &request);
  return CallNumbered(epoch, std::move(request));
}

Task<StatusOr<proto::MetadataReply>> Session::CallNumbered(uint64_t epoch, proto::MetadataRequest request) {
  const Duration begin = clock_.Now();
  const bool may_give_up = !IsMutation(request);  // one that has a number is carried out
  StatusOr<proto::MetadataReply> result = Status(absl::StatusCode::kUnavailable, "not sent yet");
  for (;;) {
    auto turn = co_await WaitConnected(epoch, begin, may_give_up);
    if (!turn.ok()) {
      result = turn.status();
      break;
    }
    std::optional<OneShot<Unit>> before;
    {
      std::lock_guard lock(mutex_);
      request.set_session(turn->session);
      before = SetAfter(*turn, &request);
      if (!before) Acknowledge(&request);
    }
    if (before) {
      co_await before->Wait();
      continue;
    }
    result = co_await turn->channel->Call(request);
    if (result.ok() || !IsRetryable(result.status())) break;
    Lost(turn->connection, result.status());
  }
  {
    std::lock_guard lock(mutex_);
    if (epoch == epoch_) Answered(request);
    if (result.ok()) CO_RETURN_IF_ERROR(Check(epoch));
  }
  if (result.ok()) CO_RETURN_IF_ERROR(FromProto(result->status()));
  co_return result;
}

Task<StatusOr<proto::MetadataReply>> Session::CallOnce(uint64_t epoch, proto::MetadataRequest request,
                                                       std::function<bool()> still) {
  const Duration begin = clock_.Now();
  CO_ASSIGN_OR_RETURN(Turn turn, co_await WaitConnected(epoch, begin, false));
  if (still != nullptr && !still()) co_return absl::UnavailableError("out of date before it was sent");
  request.set_session(turn.session);
  CO_ASSIGN_OR_RETURN(proto::MetadataReply reply, co_await turn.channel->Call(std::move(request)));
  CO_RETURN_IF_ERROR(FromProto(reply.status()));
  co_return reply;
}

}  // namespace nacre::client
