// A thread for calls that take so long that the caller's thread has better to do meanwhile. It starts with
// the first of them. Calls run one at a time, in the order in which they were given. Thread-safe. The
// destructor returns when all have run.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/functional/function_ref.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "common/task.h"

namespace nacre {

class OwnThread {
 public:
  OwnThread() = default;
  ~OwnThread();
  OwnThread(const OwnThread&) = delete;
  OwnThread& operator=(const OwnThread&) = delete;

  using Call = absl::AnyInvocable<void()>;

  // Nobody waits for the call.
  void Post(Call call);

  // Ends when `call` has returned; what it names must live until then, and whoever waits be let wait.
  Task<void> Run(absl::FunctionRef<void()> call);

 private:
  void Work();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Call> calls_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace nacre
