// The executor of request tasks. On a thread that reads requests, a task runs on the spot up to its first
// wait, and what it posts there runs on the same thread just after it (Drain); anywhere else it is the
// executor of the process. So a request that can be answered at once costs no change of thread. A value type;
// thread-safe.
#pragma once

#include <absl/functional/any_invocable.h>

#include <boost/asio/execution.hpp>
#include <boost/asio/query.hpp>
#include <boost/asio/require.hpp>
#include <deque>

#include "common/task.h"

namespace nacre::fuse {

class StartExecutor {
 public:
  // The work that has been posted on this thread. One per reading thread, for as long as it reads.
  class Queue {
   public:
    Queue() { current_ = this; }
    ~Queue() { current_ = nullptr; }
    Queue(const Queue&) = delete;
    Queue& operator=(const Queue&) = delete;
    void Drain() {
      while (!posted_.empty()) {
        absl::AnyInvocable<void()> next = std::move(posted_.front());
        posted_.pop_front();
        next();
      }
    }

   private:
    friend class StartExecutor;
    inline static thread_local Queue* current_ = nullptr;
    std::deque<absl::AnyInvocable<void()>> posted_;
  };

  static StartExecutor Over(const Executor& inner) {
    return {inner, asio::require(inner, asio::execution::blocking.never)};
  }

  template <typename Function>
  void execute(Function function) const {
    if (Queue::current_ == nullptr) {
      (post_ ? never_ : possibly_).execute(std::move(function));
    } else if (post_) {
      Queue::current_->posted_.emplace_back(std::move(function));
    } else {
      std::move(function)();
    }
  }

  asio::execution_context& query(asio::execution::context_t) const noexcept {
    return asio::query(possibly_, asio::execution::context);
  }
  StartExecutor require(asio::execution::blocking_t::never_t) const { return With(true); }
  StartExecutor require(asio::execution::blocking_t::possibly_t) const { return With(false); }

  bool operator==(const StartExecutor& other) const noexcept {
    return post_ == other.post_ && possibly_ == other.possibly_;
  }
  bool operator!=(const StartExecutor& other) const noexcept { return !(*this == other); }

 private:
  // Two arguments: one would make it a conversion from any executor, this one included.
  StartExecutor(Executor possibly, Executor never)
      : possibly_(std::move(possibly)), never_(std::move(never)) {}

  StartExecutor With(bool post) const {
    StartExecutor out = *this;
    out.post_ = post;
    return out;
  }

  Executor possibly_, never_;
  bool post_ = false;
};

}  // namespace nacre::fuse
