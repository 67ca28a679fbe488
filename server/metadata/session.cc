#include "server/metadata/session.h"

#include <cerrno>

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

void Session::Attach(std::shared_ptr<MetadataPeer> peer, Duration now) {
  std::lock_guard lock(mutex_);
  peer_ = std::move(peer);
  ++streams_;
  heard_ = now;
}

bool Session::Detach(const std::shared_ptr<MetadataPeer>& peer) {
  std::lock_guard lock(mutex_);
  if (peer_ != peer) return false;
  peer_ = nullptr;
  return true;
}

std::optional<uint64_t> Session::StreamOf(const std::shared_ptr<MetadataPeer>& peer) const {
  std::lock_guard lock(mutex_);
  if (peer_ != peer) return std::nullopt;
  return streams_;
}

std::shared_ptr<MetadataPeer> Session::peer() const {
  std::lock_guard lock(mutex_);
  return peer_;
}

void Session::Push(proto::Push push) {
  if (auto to = peer()) to->Send(std::move(push));
}

void Session::Touch(Duration now) {
  std::lock_guard lock(mutex_);
  heard_ = now;
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
  std::lock_guard lock(mutex_);
  return !std::exchange(ended_, true);
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
  std::lock_guard lock(mutex_);
  if (request.answered_below() <= answered_below_) return;
  answered_below_ = request.answered_below();
  unanswered_.clear();
  for (const proto::SequenceRange& range : request.unanswered()) {
    if (range.begin() < range.end()) unanswered_[range.begin()] = range.end();
  }
  for (auto it = answers_.begin(); it != answers_.end() && it->first < answered_below_;) {
    if (!it->second.done || !IsAnswered(it->first)) {
      ++it;
      continue;
    }
    if (it->second.stored) stale_.push_back(it->first);
    it = answers_.erase(it);
  }
}

bool Session::IsAnswered(uint64_t sequence) const {
  if (sequence < low_water_) return true;
  if (sequence >= answered_below_) return false;
  auto behind = unanswered_.upper_bound(sequence);
  return behind == unanswered_.begin() || std::prev(behind)->second <= sequence;
}

Session::Begun Session::BeginMutation(uint64_t sequence, uint64_t low_water) {
  std::lock_guard lock(mutex_);
  if (sequence == 0) return {Refusal(EPROTO, "a mutation came without a sequence number"), {}};
  if (low_water > sequence) {
    return {Refusal(EPROTO, absl::StrFormat("low water %d lies above sequence %d", low_water, sequence)), {}};
  }
  while (!answers_.empty() && answers_.begin()->first < low_water) {
    auto oldest = answers_.begin();
    if (!oldest->second.done) break;
    if (oldest->second.stored) stale_.push_back(oldest->first);
    answers_.erase(oldest);
  }
  low_water_ = std::max(low_water_, low_water);
  auto it = answers_.find(sequence);
  if (it == answers_.end()) {
    if (IsAnswered(sequence)) {
      return {Refusal(ESTALE, absl::StrFormat("sequence %d has been answered (low water %d, all below %d)",
                                              sequence, low_water_, answered_below_)),
              {}};
    }
    if (answers_.size() >= kMaxOutstanding) {
      return {Refusal(EPROTO,
                      absl::StrFormat("session %d has %d unacknowledged mutations: it must acknowledge some",
                                      id, answers_.size())),
              {}};
    }
    answers_.try_emplace(sequence);
    return {};
  }
  if (!it->second.done) {
    it->second.waiters.emplace_back();
    return {std::nullopt, it->second.waiters.back()};
  }
  proto::MetadataReply reply;
  if (!reply.ParseFromString(it->second.encoded)) {
    return {Refusal(EIO, absl::StrFormat("the recorded reply to sequence %d is damaged", sequence)), {}};
  }
  return {std::move(reply), {}};
}

void Session::EndMutation(uint64_t sequence, const proto::MetadataReply& reply) {
  std::vector<OneShot<Unit>> waiters;
  {
    std::lock_guard lock(mutex_);
    Answer& answer = answers_[sequence];
    // Recorded already, unless the operation or its commit has failed.
    if (answer.encoded.empty() || reply.status().error() != 0) reply.SerializeToString(&answer.encoded);
    answer.done = true;
    waiters = std::move(answer.waiters);
    answer.waiters.clear();
  }
  for (const auto& waiter : waiters) waiter.Set({});
}

void Session::Record(uint64_t sequence, const proto::MetadataReply& reply, KvBatch* batch) {
  std::string encoded;
  reply.SerializeToString(&encoded);
  std::lock_guard lock(mutex_);
  for (uint64_t old : stale_) batch->Erase(ReplyKey(id, old));
  stale_.clear();
  Answer& answer = answers_[sequence];
  answer.encoded = encoded;
  answer.stored = true;
  batch->Put(ReplyKey(id, sequence), std::move(encoded));
}

void Session::Restore(uint64_t sequence, std::string encoded) {
  std::lock_guard lock(mutex_);
  Answer& answer = answers_[sequence];
  answer.encoded = std::move(encoded);
  answer.done = answer.stored = true;
}

}  // namespace nacre::mds
