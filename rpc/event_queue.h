// Delivers the events of one metadata channel: one at a time, in order, on the client's executor; nothing
// after Close, nothing after the loss. Thread-safe. For the forms of MetadataChannel only.
#pragma once

#include <boost/asio/strand.hpp>
#include <memory>
#include <utility>

#include "rpc/metadata_channel.h"

namespace nacre {

class EventQueue {
 public:
  EventQueue(const Executor& executor, MetadataChannelEvents events)
      : state_(std::make_shared<State>(executor, std::move(events))) {}

  void Pushed(proto::Push push) {
    asio::post(state_->strand, [state = state_, push = std::move(push)]() mutable {
      if (!state->closed && state->events.on_push) state->events.on_push(std::move(push));
    });
  }

  void Lost(Status status) {
    asio::post(state_->strand, [state = state_, status = std::move(status)] {
      if (!state->closed.exchange(true) && state->events.on_lost) state->events.on_lost(status);
    });
  }

  void Close() { state_->closed = true; }

 private:
  struct State {
    State(const Executor& executor, MetadataChannelEvents events)
        : strand(asio::make_strand(executor)), events(std::move(events)) {}
    asio::strand<Executor> strand;
    MetadataChannelEvents events;
    std::atomic<bool> closed{false};
  };
  std::shared_ptr<State> state_;
};

}  // namespace nacre
