#include "transport/call_result.h"

namespace nacre {

bool CallResult::Set(StatusOr<std::string> result) {
  std::unique_lock lock(mutex_);
  if (value_) return false;
  value_ = std::move(result);
  Tell(std::move(lock));
  return true;
}

bool CallResult::BeginCopy() {
  std::lock_guard lock(mutex_);
  if (value_) return false;
  ++copies_;
  return true;
}

void CallResult::EndCopy(const Status& copied) {
  std::unique_lock lock(mutex_);
  --copies_;
  if (failed_.ok()) failed_ = copied;
  Tell(std::move(lock));
}

void CallResult::Tell(std::unique_lock<std::mutex> lock) {
  if (!value_ || copies_ > 0) return;
  StatusOr<std::string> result = value_->ok() && !failed_.ok() ? failed_ : std::move(*value_);
  lock.unlock();
  result_.Set(std::move(result));
}

}  // namespace nacre
