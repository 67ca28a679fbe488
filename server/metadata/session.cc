#include "server/metadata/session.h"

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <utility>

#include "rpc/convert.h"
#include "server/metadata/keys.h"

namespace nacre::mds {
namespace {

proto::MetadataReply Refusal(int error, std::string_view message) {
  proto::MetadataReply reply;
  *reply.mutable_status() = nacre::ToProto(ErrnoError(error, message));
  return reply;
}

}  // namespace

Session::Session(SessionId id, SessionRecord record, Duration now)
    : id(id),
      record(std::move(record)),
      heard_(now),
      answers_(kMaxOutstanding, [this](uint64_t, const Answer& answer) {
        if (answer.slot) slots_.Free(*answer.slot);
      }) {}

void Session::Attach(std::shared_ptr<MetadataPeer> peer, Duration now) {
  std::vector<OneShot<Unit>> waiters;
  {
    std::lock_guard lock(mutex_);
    peer_ = std::move(peer);
    ++streams_;
    heard_ = std::max(heard_, now);
    waiters = TakeSuccessors(std::nullopt);
  }
  for (const auto& waiter : waiters) waiter.Set({});
}

bool Session::Detach(const std::shared_ptr<MetadataPeer>& peer) {
  std::vector<OneShot<Unit>> waiters;
  {
    std::lock_guard lock(mutex_);
    if (peer_ != peer) return false;
    peer_ = nullptr;
    waiters = TakeSuccessors(std::nullopt);
  }
  for (const auto& waiter : waiters) waiter.Set({});
  return true;
}

Session::Heard Session::Hear(const std::shared_ptr<MetadataPeer>& peer, Duration now) {
  std::lock_guard lock(mutex_);
  if (ended_ || peer_ != peer) return {ended_, std::nullopt};
  heard_ = std::max(heard_, now);  // a thread may have been stopped since it looked at the clock
  return {false, streams_};
}

std::shared_ptr<MetadataPeer> Session::peer() const {
  std::lock_guard lock(mutex_);
  return peer_;
}

void Session::Push(proto::Push push) {
  if (auto to = peer()) to->Send(std::move(push));
}

Duration Session::heard() const {
  std::lock_guard lock(mutex_);
  return heard_;
}

bool Session::whole() const {
  std::lock_guard lock(mutex_);
  return whole_;
}

void Session::set_whole(bool whole) {
  std::lock_guard lock(mutex_);
  whole_ = whole;
}

bool Session::ended() const {
  std::lock_guard lock(mutex_);
  return ended_;
}

bool Session::TryEnd() {
  std::vector<OneShot<Unit>> waiters;
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(ended_, true)) return false;
    waiters = TakeSuccessors(std::nullopt);
  }
  for (const auto& waiter : waiters) waiter.Set({});
  return true;
}

void Session::Report(proto::KeepAlive report) {
  std::lock_guard lock(mutex_);
  report_ = std::move(report);
}

proto::KeepAlive Session::report() const {
  std::lock_guard lock(mutex_);
  return report_;
}

void Session::Acknowledge(const proto::MetadataRequest& request) {
  std::map<uint64_t, uint64_t> unanswered;
  for (const proto::SequenceRange& range : request.unanswered()) {
    if (range.begin() < range.end()) unanswered[range.begin()] = range.end();
  }
  std::lock_guard lock(mutex_);
  answers_.Acknowledge(request.answered_below(), std::move(unanswered));
}

Session::Begun Session::BeginMutation(uint64_t sequence, uint64_t low_water) {
  using Turn = ReplyCache<Answer>::Turn;
  std::lock_guard lock(mutex_);
  auto begun = answers_.Begin(sequence, low_water);
  switch (begun.turn) {
    case Turn::kCarryOut:
      return {};
    case Turn::kUnderWay:
      return {std::nullopt, std::move(begun.over)};
    case Turn::kAnswered:
      break;
    case Turn::kStale:
      return {Refusal(ESTALE, absl::StrFormat("sequence %d has been answered (low water %d, all below %d)",
                                              sequence, answers_.low_water(), answers_.answered_below())),
              {}};
    case Turn::kFull:
      return {
          Refusal(EPROTO, absl::StrFormat("session %d has %d unacknowledged mutations, whose answers take "
                                          "%d bytes: it must acknowledge some",
                                          id, answers_.size(), answers_.bytes())),
          {}};
    case Turn::kMalformed:
      if (sequence == 0) return {Refusal(EPROTO, "a mutation came without a sequence number"), {}};
      return {Refusal(EPROTO, absl::StrFormat("low water %d lies above sequence %d", low_water, sequence)),
              {}};
  }
  proto::MetadataReply reply;
  if (!reply.ParseFromString(begun.kept->encoded)) {
    return {Refusal(EIO, absl::StrFormat("the recorded reply to sequence %d is damaged", sequence)), {}};
  }
  return {std::move(reply), {}};
}

StatusOr<std::optional<OneShot<Unit>>> Session::WaitFor(uint64_t sequence, uint64_t stream) {
  std::lock_guard lock(mutex_);
  if (ended_ || peer_ == nullptr || streams_ != stream)
    return ErrnoError(ESTALE, absl::StrFormat("session %d has ended, or goes on over another stream", id));
  if (answers_.IsOver(sequence)) return std::optional<OneShot<Unit>>();
  return std::optional(successors_.emplace(sequence, OneShot<Unit>())->second);
}

std::vector<OneShot<Unit>> Session::TakeSuccessors(std::optional<uint64_t> sequence) {
  const auto begin = sequence ? successors_.lower_bound(*sequence) : successors_.begin();
  const auto end = sequence ? successors_.upper_bound(*sequence) : successors_.end();
  std::vector<OneShot<Unit>> taken;
  for (auto it = begin; it != end; ++it) taken.push_back(it->second);
  successors_.erase(begin, end);
  return taken;
}

void Session::EndMutation(uint64_t sequence, const proto::MetadataReply& reply) {
  std::vector<OneShot<Unit>> waiters;
  {
    std::lock_guard lock(mutex_);
    if (Answer* answer = answers_.Find(sequence); answer != nullptr) {
      // Recorded already, unless the operation or its commit has failed.
      if (answer->encoded.empty() || reply.status().error() != 0) reply.SerializeToString(&answer->encoded);
    }
    waiters = answers_.End(sequence, /*done=*/true);
    std::ranges::move(TakeSuccessors(sequence), std::back_inserter(waiters));
  }
  for (const auto& waiter : waiters) waiter.Set({});
}

void Session::Record(uint64_t sequence, const proto::MetadataReply& reply, KvBatch* batch) {
  ReplyRecord record{sequence, {}};
  reply.SerializeToString(&record.encoded);
  std::lock_guard lock(mutex_);
  Answer* answer = answers_.Find(sequence);
  if (answer == nullptr) return;
  if (!answer->slot) answer->slot = slots_.Take();
  batch->Put(ReplyKey(id, *answer->slot), EncodeReply(record));
  answer->encoded = std::move(record.encoded);
}

void Session::Restore(uint32_t slot, ReplyRecord record) {
  std::lock_guard lock(mutex_);
  slots_.Restore(slot);
  if (!answers_.Restore(record.sequence, {std::move(record.encoded), slot})) slots_.Free(slot);
}

uint32_t Session::Adopt(uint64_t sequence, const std::string& encoded) {
  std::lock_guard lock(mutex_);
  const uint32_t slot = slots_.Take();
  if (!answers_.Restore(sequence, {encoded, slot})) slots_.Free(slot);
  return slot;
}

}  // namespace nacre::mds
