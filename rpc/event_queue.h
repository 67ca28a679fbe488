// Delivers the events of one metadata channel: one at a time, in order, on the client's executor; nothing
// after Close, nothing after the loss. Thread-safe. For the forms of MetadataChannel only.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include "rpc/metadata_channel.h"

namespace nacre {

// Not a strand of asio's: that must not outlive its io_context, and gRPC's threads let go of a channel when
// they like.
class EventQueue {
 public:
  EventQueue(const Executor& executor, MetadataChannelEvents events)
      : state_(std::make_shared<State>(executor, std::move(events))) {}

  void Pushed(proto::Push push) {
    Add([state = state_.get(), push = std::move(push)]() mutable {
      if (!state->closed && state->events.on_push) state->events.on_push(std::move(push));
    });
  }

  void Lost(Status status) {
    Add([state = state_.get(), status = std::move(status)] {
      if (!state->closed.exchange(true) && state->events.on_lost) state->events.on_lost(status);
    });
  }

  void Close() { state_->closed = true; }

 private:
  using Event = absl::AnyInvocable<void()>;

  struct State {
    State(const Executor& executor, MetadataChannelEvents events)
        : executor(executor), events(std::move(events)) {}
    const Executor executor;
    MetadataChannelEvents events;
    std::atomic<bool> closed{false};
    std::mutex mutex;
    std::deque<Event> waiting;
    bool delivering = false;  // somebody is at it, or on the way
  };

  void Add(Event event) {
    {
      std::lock_guard lock(state_->mutex);
      state_->waiting.push_back(std::move(event));
      if (std::exchange(state_->delivering, true)) return;
    }
    asio::post(state_->executor, [state = state_] { Deliver(*state); });
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

  std::shared_ptr<State> state_;
};

}  // namespace nacre
