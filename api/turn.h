// The object behind a nacre_turn: a place in a CUDA stream (gpu/stream_order.h). Thread-safe.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>

#include "api/objects.h"
#include "gpu/stream_order.h"

namespace nacre::api {

class Turn : public std::enable_shared_from_this<Turn> {
 public:
  Turn(std::shared_ptr<Client> client, std::shared_ptr<gpu::StreamOrder> order)
      : client_(std::move(client)), order_(std::move(order)) {}

  // Once: begins to look for the stream.
  void Watch();
  // EAGAIN: the stream has not got there within the time; negative: waits for ever.
  Status Wait(Duration timeout);
  void End() { order_->Release(); }

 private:
  const std::shared_ptr<Client> client_;  // whose threads look
  const std::shared_ptr<gpu::StreamOrder> order_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::optional<Status> status_;
};

}  // namespace nacre::api
