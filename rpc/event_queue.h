// Delivers the events of one metadata channel: one at a time, in order, on the client's executor; nothing
// after Close, nothing after the loss. Once Close has returned the executor is not used any more, so that it
// may go before gRPC's threads let go of the channel. Thread-safe. For the forms of MetadataChannel only.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include "common/turn.h"
#include "rpc/metadata_channel.h"

namespace nacre {

// Not a strand of asio's: that must not outlive its io_context.
class EventQueue {
 public:
  EventQueue(const Executor& executor, MetadataChannelEvents events)
      : state_(std::make_shared<State>(executor, std::move(events))) {}

  void Pushed(proto::Push push) {
    Add([state = state_.get(), push = std::move(push)]() mutable {
      if (state->events.on_push) state->events.on_push(std::move(push));
    });
  }

  void Lost(Status status) {
    Add(
        [state = state_.get(), status = std::move(status)] {
          if (state->events.on_lost) state->events.on_lost(status);
        },
        /*last=*/true);
  }

  void Close() {
    std::lock_guard lock(state_->mutex);
    state_->over = true;
    state_->waiting.clear();
  }

 private:
  using Event = absl::AnyInvocable<void()>;

  struct State {
    State(const Executor& executor, MetadataChannelEvents events)
        : executor(executor), events(std::move(events)) {}
    const Executor executor;
    MetadataChannelEvents events;
    std::mutex mutex;
    std::deque<Event> waiting;
    bool delivering = false;  // somebody is at it, or on the way
    bool over = false;        // nothing more is taken in
  };

  void Add(Event event, bool last = false) {
    std::lock_guard lock(state_->mutex);
    if (std::exchange(state_->over, state_->over || last)) return;
    state_->waiting.push_back(std::move(event));
    if (std::exchange(state_->delivering, true)) return;
    Turn::CallAtEnd(state_->executor, [state = state_] { Deliver(*state); });
  }

  static void Deliver(State& state) {
    std::unique_lock lock(state.mutex);
    while (!state.waiting.empty()) {
      Event event = std::move(state.waiting.front());
      state.waiting.pop_front();
      lock.unlock();
      event();
      lock.lock();
    }
    state.delivering = false;
  }

  const std::shared_ptr<State> state_;
};

}  // namespace nacre
