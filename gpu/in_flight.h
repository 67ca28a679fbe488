// The batches that one CUDA stream is working on, oldest first, and how long they will take. For one thread,
// on which the context is current.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "gpu/batch.h"
#include "gpu/context.h"

namespace nacre::gpu {

// The rate that copies have been achieving lately.
class Rate {
 public:
  EngineClock::duration TimeFor(uint64_t bytes) const;
  void Learn(uint64_t bytes, EngineClock::duration took);

 private:
  double bytes_per_second_ = 20e9;
};

// The stream has the greatest priority, so that its kernels get the GPU's processors before the application's
// next ones. Work of a waiting stream can be in its way all the same (stream_waits.h).
class InFlight {
 public:
  static StatusOr<std::unique_ptr<InFlight>> Open(std::shared_ptr<Context> context);
  // Waits for what is under way.
  ~InFlight();
  InFlight(const InFlight&) = delete;
  InFlight& operator=(const InFlight&) = delete;

  CudaStream stream() const { return stream_; }
  uint64_t bytes() const { return bytes_; }
  bool empty() const { return batches_.empty(); }
  // When the oldest batch should be done; not if empty.
  EngineTime expected() const { return batches_.front().expected; }

  // After the batch's work was enqueued. If that cannot be followed, waits for it and gives the batch back
  // with the error in all its jobs.
  std::optional<Batch> Push(Batch batch);

  // The oldest batch if it is done, with an error of the device in all its jobs.
  std::optional<Batch> Pop();

 private:
  explicit InFlight(std::shared_ptr<Context> context) : context_(std::move(context)) {}
  CudaEvent TakeEvent();

  const std::shared_ptr<Context> context_;
  CudaStream stream_ = nullptr;
  std::deque<Batch> batches_;
  std::vector<CudaEvent> events_;  // free ones
  uint64_t bytes_ = 0;
  EngineTime last_done_;
  Rate rate_;
};

}  // namespace nacre::gpu
