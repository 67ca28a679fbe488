// Coroutines: Task<T>, how to start one, and what they wait on.
//
// A Task runs on the executor it was started on; whoever completes an OneShot or frees an AsyncMutex only
// posts the waiter there, so nothing is ever resumed inside somebody else's call. All primitives are
// thread-safe; a primitive must outlive its waiters. Never hold a std::mutex across a co_await.
#pragma once

#include <absl/functional/any_invocable.h>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/associated_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace nacre {

namespace asio = boost::asio;

using Executor = asio::any_io_executor;

template <typename T>
using Task = asio::awaitable<T>;

// Ends the process: an exception came out of a task, which is a bug (DESIGN §4: errors are Status).
[[noreturn]] void DieOfException(std::exception_ptr exception);

// Starts a task that nobody waits for.
void Spawn(const Executor& executor, Task<void> task);

// Keeps track of suspended coroutines, so that they can be destroyed where they wait (a simulated crash, the
// end of a test): a coroutine that waits for something which only itself owns is a cycle that nothing else
// would free.
class SuspensionTracker {
 public:
  virtual ~SuspensionTracker() = default;
  // Takes what resumes a waiter and returns what stands for it.
  virtual absl::AnyInvocable<void()> Track(absl::AnyInvocable<void()> resume) = 0;
};

// Of this thread; null (in every real process): nobody keeps track.
inline constinit thread_local SuspensionTracker* suspension_tracker = nullptr;

// A value that arrives once. Set may come before or after the wait, from any thread; one waiter.
template <typename T>
class OneShot {
 public:
  OneShot() : state_(std::make_shared<State>()) {}

  // The first call wins and returns true. Copies of a OneShot share the value.
  bool Set(T value) const {
    absl::AnyInvocable<void()> resume;
    {
      std::lock_guard lock(state_->mutex);
      if (state_->done) return false;
      state_->done = true;
      state_->value = std::move(value);
      resume = std::move(state_->resume);
      state_->resume = nullptr;
    }
    if (resume) resume();
    return true;
  }

  bool IsSet() const {
    std::lock_guard lock(state_->mutex);
    return state_->done;
  }

  Task<T> Wait() const {
    std::shared_ptr<State> state = state_;
    // Named: GCC 12 destroys a temporary closure inside co_await twice, and with it what it captured.
    auto initiate = [state](auto handler) {
      auto executor = asio::get_associated_executor(handler);
      absl::AnyInvocable<void()> resume = [executor, handler = std::move(handler)]() mutable {
        asio::post(executor, std::move(handler));
      };
      if (suspension_tracker != nullptr) resume = suspension_tracker->Track(std::move(resume));
      {
        std::lock_guard lock(state->mutex);
        if (!state->done) {
          state->resume = std::move(resume);
          return;
        }
      }
      resume();
    };
    co_await asio::async_initiate<const asio::use_awaitable_t<>, void()>(std::move(initiate),
                                                                         asio::use_awaitable);
    co_return std::move(*state->value);
  }

 private:
  struct State {
    std::mutex mutex;
    bool done = false;
    std::optional<T> value;
    absl::AnyInvocable<void()> resume;
  };
  std::shared_ptr<State> state_;
};

struct Unit {};

// Mutual exclusion between coroutines, first come first served.
class AsyncMutex {
 public:
  class [[nodiscard]] Guard {
   public:
    Guard() = default;
    explicit Guard(AsyncMutex* mutex) : mutex_(mutex) {}
    Guard(Guard&& other) noexcept : mutex_(std::exchange(other.mutex_, nullptr)) {}
    Guard& operator=(Guard&& other) noexcept {
      Release();
      mutex_ = std::exchange(other.mutex_, nullptr);
      return *this;
    }
    ~Guard() { Release(); }
    void Release() {
      if (mutex_ != nullptr) std::exchange(mutex_, nullptr)->Unlock();
    }

   private:
    AsyncMutex* mutex_ = nullptr;
  };

  Task<Guard> Lock();

 private:
  void Unlock();

  std::mutex mutex_;
  bool locked_ = false;
  std::deque<OneShot<Unit>> waiters_;
};

// Runs tasks at once on the current executor and waits for all of them; results in the order of the tasks.
template <typename T>
Task<std::vector<T>> WhenAll(std::vector<Task<T>> tasks) {
  struct Shared {
    std::mutex mutex;
    std::vector<std::optional<T>> results;
    size_t left;
    OneShot<Unit> done;
  };
  auto shared = std::make_shared<Shared>();
  shared->results.resize(tasks.size());
  shared->left = tasks.size();
  std::vector<T> results;
  if (tasks.empty()) co_return results;
  Executor executor = co_await asio::this_coro::executor;
  for (size_t i = 0; i < tasks.size(); ++i) {
    asio::co_spawn(executor, std::move(tasks[i]), [shared, i](std::exception_ptr exception, T result) {
      if (exception) DieOfException(exception);
      std::unique_lock lock(shared->mutex);
      shared->results[i] = std::move(result);
      if (--shared->left > 0) return;
      lock.unlock();
      shared->done.Set({});
    });
  }
  co_await shared->done.Wait();
  results.reserve(shared->results.size());
  for (auto& result : shared->results) results.push_back(*std::move(result));
  co_return results;
}

}  // namespace nacre
