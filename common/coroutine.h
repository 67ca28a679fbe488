// Task<T>, a coroutine that another one waits for, and how the first of them is started and how they wait for
// operations of Asio's.
//
// A task begins when it is waited for and runs where the one that waits does; the two and all others that
// wait for each other are a chain, begun by Spawn on an executor. It goes on there whenever what its last
// coroutine has waited for is there. Errors are values: an exception that leaves a task ends the process.
//
// Ours and not asio::awaitable, for what the latter costs on the data plane:
// docs/decisions/0002-tasks.md.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <coroutine>
#include <exception>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

namespace nacre {

namespace asio = boost::asio;

using Executor = asio::any_io_executor;

class Cancellation;  // common/cancellation.h

// Most executors are those of a context of Asio's, which take half as much when they are called by their
// type. Null: it is of another.
inline const asio::io_context::executor_type* ContextOf(const Executor& executor) {
  return executor.target<asio::io_context::executor_type>();
}

// State that the coroutines of a chain share. It is the first one's, and goes with it.
struct Chain {
  Executor executor;
  std::shared_ptr<Cancellation> cancellation;  // null: nobody gives up waiting for it
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> work;  // its context runs on
  std::coroutine_handle<> first;
};

// A chain whose last coroutine waits for what whoever holds this will tell it: resumed once at most, and
// destroyed where it waits if it never is.
class Suspended {
 public:
  Suspended(Chain* chain, std::coroutine_handle<> last) : chain_(chain), last_(last) {}
  Suspended(Suspended&& other) noexcept : chain_(std::exchange(other.chain_, nullptr)), last_(other.last_) {}
  Suspended& operator=(Suspended&&) = delete;
  ~Suspended() {
    if (chain_ != nullptr) chain_->first.destroy();
  }

  // Here and now, which must be on the chain's executor.
  void Resume() &&;
  // On its executor: later; or at once if this thread is one of that.
  void Post() &&;
  void Dispatch() &&;

 private:
  Chain* chain_;
  std::coroutine_handle<> last_;
};

namespace coroutine {

// Sets what runs on this thread when the coroutine that runs now has given way. Out of line: a compiler may
// keep the address of a thread's variable across the point where a coroutine moves to another.
void RunNext(std::coroutine_handle<> next) noexcept;

[[noreturn]] void DieOfException() noexcept;

class PromiseBase {
 public:
  std::suspend_always initial_suspend() const noexcept { return {}; }
  auto final_suspend() const noexcept { return ReturnToWaiting{}; }
  void unhandled_exception() const noexcept { DieOfException(); }

  Chain* chain = nullptr;
  std::coroutine_handle<> waiting;

 private:
  struct ReturnToWaiting {
    bool await_ready() const noexcept { return false; }
    template <typename Promise>
    void await_suspend(std::coroutine_handle<Promise> ended) const noexcept {
      RunNext(ended.promise().waiting);
    }
    void await_resume() const noexcept {}
  };
};

template <typename T>
class Promise : public PromiseBase {
 public:
  template <typename Value>
  void return_value(Value&& value) {
    value_.emplace(std::forward<Value>(value));
  }
  T Take() { return *std::move(value_); }

 private:
  std::optional<T> value_;
};

template <>
class Promise<void> : public PromiseBase {
 public:
  void return_void() const {}
  void Take() const {}
};

}  // namespace coroutine

template <typename T>
class [[nodiscard]] Task {
 public:
  class promise_type : public coroutine::Promise<T> {
   public:
    Task get_return_object() { return Task(Handle::from_promise(*this)); }
  };

  Task() = default;
  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Task& operator=(Task&& other) noexcept {
    Task old(std::exchange(handle_, std::exchange(other.handle_, nullptr)));
    return *this;
  }
  ~Task() {
    if (handle_) handle_.destroy();
  }

  // Runs it to its end; its coroutine is gone when the result is there.
  auto operator co_await() && { return Awaiter{this}; }

 private:
  using Handle = std::coroutine_handle<promise_type>;
  struct Awaiter {
    Task* task;
    bool await_ready() const noexcept { return false; }
    template <typename Promise>
    void await_suspend(std::coroutine_handle<Promise> waiting) const noexcept {
      task->handle_.promise().chain = waiting.promise().chain;
      task->handle_.promise().waiting = waiting;
      coroutine::RunNext(task->handle_);
    }
    T await_resume() const {
      const Task ended = std::move(*task);
      return ended.handle_.promise().Take();
    }
  };

  explicit Task(Handle handle) : handle_(handle) {}

  Handle handle_;
};

namespace coroutine {

// The first of a chain: nobody waits for it, so it goes by itself.
class First {
 public:
  class promise_type : public PromiseBase {
   public:
    promise_type() { chain = &chain_; }
    First get_return_object() { return First(&chain_, Handle::from_promise(*this)); }
    std::suspend_never final_suspend() const noexcept { return {}; }
    void return_void() const {}

   private:
    Chain chain_;
  };

  Suspended Begin(const Executor& executor, std::shared_ptr<Cancellation> cancellation) {
    chain_->executor = executor;
    chain_->cancellation = std::move(cancellation);
    if (const auto* context = ContextOf(executor)) chain_->work.emplace(*context);
    chain_->first = handle_;
    return Suspended(chain_, handle_);
  }

 private:
  using Handle = std::coroutine_handle<promise_type>;
  First(Chain* chain, Handle handle) : chain_(chain), handle_(handle) {}

  Chain* const chain_;
  const Handle handle_;
};

template <typename T, typename Done>
First RunToEnd(Task<T> task, Done done) {
  if constexpr (std::is_void_v<T>) {
    co_await std::move(task);
    done();
  } else {
    done(co_await std::move(task));
  }
}

}  // namespace coroutine

// Starts a task, at once if this thread is one of the executor's, and tells `done` its result, on the
// executor. Where `cancellation` is given, the task may end early with its status, from any wait that asks
// for it (CurrentCancellation).
template <typename T, typename Done>
void Spawn(const Executor& executor, Task<T> task, Done done,
           std::shared_ptr<Cancellation> cancellation = nullptr) {
  coroutine::First first = coroutine::RunToEnd(std::move(task), std::move(done));
  first.Begin(executor, std::move(cancellation)).Dispatch();
}

// One that nobody waits for.
inline void Spawn(const Executor& executor, Task<void> task) {
  Spawn(executor, std::move(task), [] {});
}

// `co_await CurrentExecutor()`: the one that the task runs on.
class CurrentExecutor {
 public:
  bool await_ready() const noexcept { return false; }
  template <typename Promise>
  bool await_suspend(std::coroutine_handle<Promise> task) {
    executor_ = task.promise().chain->executor;
    return false;
  }
  Executor await_resume() { return std::move(executor_); }

 private:
  Executor executor_;
};

// `co_await CurrentCancellation()`: what may end the task's waits early; null if nothing may. Of the chain,
// so that it need not be handed through every function; only waits that leave nothing half done ask for it.
class CurrentCancellation {
 public:
  bool await_ready() const noexcept { return false; }
  template <typename Promise>
  bool await_suspend(std::coroutine_handle<Promise> task) {
    cancellation_ = task.promise().chain->cancellation;
    return false;
  }
  std::shared_ptr<Cancellation> await_resume() { return std::move(cancellation_); }

 private:
  std::shared_ptr<Cancellation> cancellation_;
};

// `co_await Yield()`: lets everything run first that is waiting to on the task's executor.
class Yield {
 public:
  bool await_ready() const noexcept { return false; }
  template <typename Promise>
  void await_suspend(std::coroutine_handle<Promise> task) const {
    Suspended(task.promise().chain, task).Post();
  }
  void await_resume() const noexcept {}
};

// `co_await Operation<Results...>(start)`: an operation of Asio's, which `start` is given the handler of; it
// must end on the task's executor.
template <typename Start, typename... Results>
class OperationAwaiter {
 public:
  explicit OperationAwaiter(Start start) : start_(std::move(start)) {}

  bool await_ready() const noexcept { return false; }
  template <typename Promise>
  void await_suspend(std::coroutine_handle<Promise> task) {
    Start start = std::move(start_);  // this may be gone before it has returned
    start([this, suspended = Suspended(task.promise().chain, task)](Results... results) mutable {
      results_.emplace(std::move(results)...);
      std::move(suspended).Resume();
    });
  }
  std::tuple<Results...> await_resume() { return *std::move(results_); }

 private:
  Start start_;
  std::optional<std::tuple<Results...>> results_;
};

template <typename... Results, typename Start>
OperationAwaiter<Start, Results...> Operation(Start start) {
  return OperationAwaiter<Start, Results...>(std::move(start));
}

}  // namespace nacre
