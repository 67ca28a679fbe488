// Threads that are none of a runtime's own, but carry on with its tasks for a moment: those that bring what a
// task waits for, when handing it over would cost more than the work. Thread-safe.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>

#include "common/coroutine.h"

namespace nacre {

class Guests {
 public:
  static std::shared_ptr<Guests> MakeFor(asio::io_context* context);  // once
  // Those of the runtime that the executor is of; null: it is of none.
  static std::shared_ptr<Guests> Of(const Executor& executor);

  // Whether this thread may run tasks of the runtime, until it calls Leave.
  bool TryEnter();
  void Leave();

  // For the runtime: lets nobody in any more, and waits for those who have entered.
  void Close();

 private:
  std::mutex mutex_;
  std::condition_variable left_;
  int inside_ = 0;
  bool closed_ = false;
};

}  // namespace nacre
