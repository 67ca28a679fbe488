#include "transport/verbs/receive_ledger.h"

#include <algorithm>
#include <utility>

namespace nacre::verbs {

void ReceiveLedger::Posted(uint32_t buffer) {
  std::lock_guard lock(mutex_);
  if (buffer >= away_.size()) away_.resize(buffer + 1, kHere);
  away_[buffer] = next_++;
}

void ReceiveLedger::NotPosted(uint32_t buffer) {
  std::lock_guard lock(mutex_);
  away_[buffer] = kHere;
}

bool ReceiveLedger::CameBack(uint32_t buffer) {
  std::lock_guard lock(mutex_);
  const uint64_t place = std::exchange(away_[buffer], kHere);
  if (place != kGivenUp) {
    latest_back_ = std::max(latest_back_, place);
    return true;
  }
  std::erase_if(given_up_, [&](const GivenUp& known) { return known.buffer == buffer; });
  return false;
}

uint64_t ReceiveLedger::Joined() {
  std::lock_guard lock(mutex_);
  alive_.insert(next_joined_);
  return next_joined_++;
}

void ReceiveLedger::Left(uint64_t number) {
  std::lock_guard lock(mutex_);
  alive_.erase(number);
  left_before_ = next_;
}

// All that a queue pair had received when it left was in the completion queue, and has been polled since.
ReceiveLedger::Losses ReceiveLedger::Look() {
  Losses losses;
  std::lock_guard lock(mutex_);
  const uint64_t limit = std::min(due_before_, latest_back_);
  for (uint32_t buffer = 0; limit > 0 && buffer < away_.size(); ++buffer) {
    if (away_[buffer] == kHere || away_[buffer] >= limit) continue;
    away_[buffer] = kGivenUp;
    given_up_.push_back({buffer, next_joined_});
    ++losses.missing;
  }
  if (latest_back_ >= due_before_)
    due_before_ = 0;  // else some may have been lost that nothing has overtaken
  due_before_ = std::max(due_before_, std::exchange(left_before_, 0));
  std::erase_if(given_up_, [&](const GivenUp& known) {
    if (known.joined > oldest_alive_) return false;
    away_[known.buffer] = kHere;
    losses.given_back.push_back(known.buffer);
    return true;
  });
  oldest_alive_ = OldestAlive();
  return losses;
}

size_t ReceiveLedger::given_up() const {
  std::lock_guard lock(mutex_);
  return given_up_.size();
}

}  // namespace nacre::verbs
