// The threads that run tasks in a real process (the simulation has its own executor on one thread). The first
// thread waits for events and runs what comes of them; each of the others looks now and then whether there is
// more than those before it can do, and helps. A thread that waited with it would be woken for every event,
// for nothing mostly, and on an idle machine a wake-up costs as much as the work. Thread-safe except
// construction and destruction, which happen on a thread that is none of its own.
#pragma once

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <condition_variable>
#include <future>
#include <mutex>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "common/task.h"

namespace nacre {

class Runtime {
 public:
  explicit Runtime(int threads);
  // Tasks that still wait then are destroyed, not resumed; whatever they name must live until here.
  ~Runtime() { Stop(); }

  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  Executor executor() { return context_.get_executor(); }

  // Ends the threads; nothing runs any more afterwards.
  void Stop();

  // Runs a task and waits for its end. Not from a thread of this runtime.
  template <typename T>
  T Run(Task<T> task) {
    std::promise<T> promise;
    Spawn(executor(), std::move(task), [&promise](T value) { promise.set_value(std::move(value)); });
    return promise.get_future().get();
  }

 private:
  void Lead();
  void Help(size_t number);
  void StandIn(size_t number);
  uint64_t RanBefore(size_t number) const;  // by the threads of a lower number
  bool Nap(Duration duration);

  asio::io_context context_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::vector<std::atomic<uint64_t>> done_;  // what each thread has run so far
  std::mutex mutex_;
  std::condition_variable stop_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace nacre
