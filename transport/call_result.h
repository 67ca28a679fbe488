// The result of a call whose puts go to a device: set when the call is over and no copy to the device is
// under way any more, so that nobody touches the caller's memory after it. Thread-safe.
#pragma once

#include <mutex>
#include <optional>
#include <string>

#include "common/status.h"
#include "common/task.h"

namespace nacre {

class CallResult {
 public:
  // The first one counts; false for the others.
  bool Set(StatusOr<std::string> result);

  // False: the call is over, nothing may be copied any more. Otherwise EndCopy must follow.
  bool BeginCopy();
  // A copy that failed makes the call fail.
  void EndCopy(const Status& copied);

  auto Wait() const { return result_.Wait(); }
  bool IsSet() const { return result_.IsSet(); }

 private:
  void Tell(std::unique_lock<std::mutex> lock);

  std::mutex mutex_;
  int copies_ = 0;
  Status failed_;
  std::optional<StatusOr<std::string>> value_;
  const OneShot<StatusOr<std::string>> result_;
};

}  // namespace nacre
