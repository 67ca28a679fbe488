// The threads that run tasks in a real process (the simulation has its own executor on one thread).
// Thread-safe except construction and destruction, which happen on a thread that is none of its own.
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <future>
#include <thread>
#include <vector>

#include "common/task.h"

namespace nacre {

class Runtime {
 public:
  explicit Runtime(int threads) : context_(threads), work_(context_.get_executor()) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { context_.run(); });
  }
  // What still waits then is destroyed, not resumed; whatever it names must live until here.
  ~Runtime() { Stop(); }

  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  Executor executor() { return context_.get_executor(); }

  // Ends the threads; nothing runs any more afterwards.
  void Stop() {
    context_.stop();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  // Runs a task and waits for its end. Not from a thread of this runtime.
  template <typename T>
  T Run(Task<T> task) {
    std::promise<T> promise;
    asio::co_spawn(context_, std::move(task), [&promise](std::exception_ptr exception, T value) {
      if (exception) DieOfException(exception);
      promise.set_value(std::move(value));
    });
    return promise.get_future().get();
  }

 private:
  asio::io_context context_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::vector<std::thread> threads_;
};

}  // namespace nacre
