// Coroutines: Task<T> (common/coroutine.h) and what tasks wait on.
//
// A Task runs on the executor it was started on; whoever completes an OneShot or frees an AsyncMutex only
// posts the waiter there, so nothing is ever resumed inside somebody else's call. All primitives are
// thread-safe; a primitive must outlive its waiters. Never hold a std::mutex across a co_await.
#pragma once

#include <absl/functional/any_invocable.h>

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "common/coroutine.h"

namespace nacre {

// Keeps track of suspended coroutines, so that they can be destroyed where they wait (a simulated crash, the
// end of a test): a coroutine that waits for something which only itself owns is a cycle that nothing else
// would free.
class SuspensionTracker {
 public:
  virtual ~SuspensionTracker() = default;
  // Takes what resumes a waiter and returns what stands for it. `children` is held by the tasks that it waits
  // for and that may use its frame: while it lives, the waiter must not be destroyed.
  virtual absl::AnyInvocable<void()> Track(absl::AnyInvocable<void()> resume,
                                           std::weak_ptr<void> children) = 0;
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

  // To be awaited. The one waiter gets the value. `children`: see SuspensionTracker.
  auto Wait(std::weak_ptr<void> children = {}) const { return Arrival{state_, std::move(children)}; }

 private:
  struct State {
    std::mutex mutex;
    bool done = false;
    std::optional<T> value;
    absl::AnyInvocable<void()> resume;
  };
  struct Arrival {
    std::shared_ptr<State> state;
    std::weak_ptr<void> children;
    bool await_ready() const noexcept { return false; }
    template <typename Promise>
    bool await_suspend(std::coroutine_handle<Promise> task) const {
      const std::shared_ptr<State> kept = state;  // this may be gone as soon as the mutex is free
      std::lock_guard lock(kept->mutex);
      if (kept->done && suspension_tracker == nullptr) return false;
      absl::AnyInvocable<void()> resume = [waiter = Suspended(task.promise().chain, task)]() mutable {
        std::move(waiter).Post();
      };
      if (suspension_tracker != nullptr) resume = suspension_tracker->Track(std::move(resume), children);
      if (kept->done) {
        resume();  // in a simulation others may come first
      } else {
        kept->resume = std::move(resume);
      }
      return true;
    }
    T await_resume() const { return *std::move(state->value); }
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

// Whether each of several tasks begins as soon as the one before it waits, or when whatever else is queued on
// the executor has run as well: what the first tasks wait for may be there before the last ones have begun.
enum class Begin { kAtOnce, kByTurns };

// Runs tasks on the current executor and waits for all of them; results in the order of the tasks.
template <typename T>
Task<std::vector<T>> WhenAll(std::vector<Task<T>> tasks, Begin begin = Begin::kAtOnce) {
  struct Shared {
    std::mutex mutex;
    std::vector<std::optional<T>> results;
    size_t left;
    OneShot<Unit> done;
  };
  auto shared = std::make_shared<Shared>();
  auto child = std::make_shared<Unit>();
  shared->results.resize(tasks.size());
  shared->left = tasks.size();
  std::vector<T> results;
  if (tasks.empty()) co_return results;
  Executor executor = co_await CurrentExecutor();
  for (size_t i = 0; i < tasks.size(); ++i) {
    if (i > 0 && begin == Begin::kByTurns) co_await Yield();
    Spawn(executor, std::move(tasks[i]), [shared, child, i](T result) {
      std::unique_lock lock(shared->mutex);
      shared->results[i] = std::move(result);
      if (--shared->left > 0) return;
      lock.unlock();
      shared->done.Set({});
    });
  }
  std::weak_ptr<void> children = child;
  child.reset();
  co_await shared->done.Wait(std::move(children));
  results.reserve(shared->results.size());
  for (auto& result : shared->results) results.push_back(*std::move(result));
  co_return results;
}

}  // namespace nacre
