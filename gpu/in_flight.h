// The batches that one CUDA stream is working on, oldest first, and when they should be done. For one thread,
// on which the context is current.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "gpu/batch.h"
#include "gpu/context.h"
#include "gpu/shared_rate.h"

namespace nacre::gpu {

// The stream has the greatest priority, so that its kernels get the GPU's processors before the application's
// next ones. Work of a waiting stream can be in its way all the same (stream_waits.h).
class InFlight {
 public:
  // `rate` is that of what the stream does, and outlives it.
  static StatusOr<std::unique_ptr<InFlight>> Open(std::shared_ptr<Context> context, SharedRate* rate);
  // Waits for what is under way.
  ~InFlight();
  InFlight(const InFlight&) = delete;
  InFlight& operator=(const InFlight&) = delete;

  CudaStream stream() const { return stream_; }
  bool empty() const { return batches_.empty(); }
  // When the oldest batch should be done; not if empty.
  EngineTime expected() const { return batches_.front().expected; }

  // After the batch's work was enqueued. If that cannot be followed, waits for it and gives the batch back
  // with the error in all its jobs.
  std::optional<Batch> Push(Batch batch);

  // The oldest batch if it is done, with an error of the device in all its jobs.
  std::optional<Batch> Pop();

 private:
  InFlight(std::shared_ptr<Context> context, SharedRate* rate) : context_(std::move(context)), rate_(rate) {}
  CudaEvent TakeEvent();

  const std::shared_ptr<Context> context_;
  SharedRate* const rate_;
  CudaStream stream_ = nullptr;
  std::deque<Batch> batches_;
  std::vector<CudaEvent> events_;  // free ones
};

}  // namespace nacre::gpu
