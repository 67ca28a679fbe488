#include "common/coroutine.h"

#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>
#include <cstdlib>

#include "common/burst.h"
#include "common/log.h"
#include "common/turn.h"

namespace nacre {
namespace coroutine {
namespace {

constinit thread_local std::coroutine_handle<> next_coroutine = nullptr;

}  // namespace

void RunNext(std::coroutine_handle<> next) noexcept { next_coroutine = next; }

void DieOfException() noexcept {
  try {
    throw;
  } catch (const std::exception& e) {
    LogError("a task ended by an exception: %s", e.what());
  } catch (...) {
    LogError("a task ended by an exception of unknown type");
  }
  std::abort();
}

}  // namespace coroutine

// One coroutine after the other and not one out of the other: the stack stays as it is however many there
// are, whatever the compiler makes of calls at the end of functions. Once a coroutine has given way without
// naming a next one, its chain may be running elsewhere already.
void Suspended::Resume() && {
  chain_ = nullptr;
  for (std::coroutine_handle<> next = last_; next;) {
    next.resume();
    next = std::exchange(coroutine::next_coroutine, nullptr);
  }
}

void Suspended::Post() && {
  const Executor& executor = chain_->executor;
  if (Turn::TakesChain(executor, this) || Burst::TakesChain(executor, this)) return;
  const auto* context = ContextOf(executor);
  auto resume = [self = std::move(*this)]() mutable { std::move(self).Resume(); };
  if (context != nullptr) {
    asio::post(*context, std::move(resume));
  } else {
    asio::post(executor, std::move(resume));
  }
}

void Suspended::Dispatch() && {
  const Executor& executor = chain_->executor;
  const auto* context = ContextOf(executor);
  if (context != nullptr && context->running_in_this_thread()) return std::move(*this).Resume();
  if (Turn::TakesChain(executor, this) || Burst::TakesChain(executor, this)) return;
  asio::dispatch(executor, [self = std::move(*this)]() mutable { std::move(self).Resume(); });
}

}  // namespace nacre
