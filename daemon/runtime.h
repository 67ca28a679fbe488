// The threads that a process runs its tasks on, and the wait for its end. One per process, made and used by
// the main thread; errors of the system end the process, as nothing could go on without.
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <future>
#include <thread>
#include <vector>

#include "common/task.h"

namespace nacre {

class Runtime {
 public:
  // 0 threads: one per core, at most four. SIGPIPE is ignored; SIGTERM and SIGINT are for WaitForEnd. Fork
  // before.
  explicit Runtime(unsigned threads = 0);
  ~Runtime();  // ends the threads; tasks that still wait are dropped
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  Executor executor() { return context_.get_executor(); }

  // Runs a task to its end while the main thread waits.
  template <typename T>
  T Run(Task<T> task) {
    std::promise<T> promise;
    std::future<T> result = promise.get_future();
    asio::co_spawn(context_, std::move(task), [&promise](std::exception_ptr exception, T value) {
      if (exception) DieOfException(exception);
      promise.set_value(std::move(value));
    });
    return result.get();
  }

  // Until SIGTERM or SIGINT comes or `also` arrives. The signal's number; 0: `also`. A second signal while
  // the process is ending kills it.
  int WaitForEnd(OneShot<Unit> also);

 private:
  asio::io_context context_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  asio::signal_set signals_;
  std::vector<std::thread> threads_;
};

}  // namespace nacre
