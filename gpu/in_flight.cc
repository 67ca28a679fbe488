#include "gpu/in_flight.h"

#include <algorithm>

namespace nacre::gpu {
namespace {

constexpr uint64_t kTellingBytes = 1 << 20;  // less says more of latency than of the rate
constexpr EngineClock::duration kLatency = std::chrono::microseconds(6);

void FailAll(const Batch& batch, const Status& status) {
  if (status.ok()) return;
  for (const JobPtr& job : batch.jobs) job->Fail(status);
}

}  // namespace

EngineClock::duration Rate::TimeFor(uint64_t bytes) const {
  return kLatency + std::chrono::nanoseconds(static_cast<int64_t>(bytes / bytes_per_second_ * 1e9));
}

void Rate::Learn(uint64_t bytes, EngineClock::duration took) {
  double seconds = std::chrono::duration<double>(took).count();
  if (bytes < kTellingBytes || seconds <= 0) return;
  double rate = bytes / seconds;
  // A late look makes a copy seem slow, nothing makes it seem fast: up at once, down slowly.
  bytes_per_second_ = rate > bytes_per_second_ ? rate : bytes_per_second_ * 0.95 + rate * 0.05;
}

StatusOr<std::unique_ptr<InFlight>> InFlight::Open(std::shared_ptr<Context> context) {
  std::unique_ptr<InFlight> in_flight(new InFlight(std::move(context)));
  const CudaLibrary& cuda = in_flight->context_->cuda();
  int least = 0, greatest = 0;
  RETURN_IF_ERROR(
      cuda.Check(cuda->CtxGetStreamPriorityRange(&least, &greatest), "cuCtxGetStreamPriorityRange"));
  RETURN_IF_ERROR(
      cuda.Check(cuda->StreamCreateWithPriority(&in_flight->stream_, kCudaStreamNonBlocking, greatest),
                 "cuStreamCreateWithPriority"));
  return in_flight;
}

InFlight::~InFlight() {
  const CudaLibrary& cuda = context_->cuda();
  if (stream_ == nullptr) return;
  cuda->StreamSynchronize(stream_);
  for (const Batch& batch : batches_) cuda->EventDestroy(batch.event);
  for (CudaEvent event : events_) cuda->EventDestroy(event);
  cuda->StreamDestroy(stream_);
}

CudaEvent InFlight::TakeEvent() {
  CudaEvent event = nullptr;
  if (events_.empty()) {
    context_->cuda()->EventCreate(&event, kCudaEventDisableTiming);
    return event;
  }
  event = events_.back();
  events_.pop_back();
  return event;
}

std::optional<Batch> InFlight::Push(Batch batch) {
  const CudaLibrary& cuda = context_->cuda();
  batch.event = TakeEvent();
  Status recorded = cuda.Check(cuda->EventRecord(batch.event, stream_), "cuEventRecord");
  if (!recorded.ok()) {
    cuda->StreamSynchronize(stream_);
    FailAll(batch, recorded);
    if (batch.event != nullptr) events_.push_back(batch.event);
    return batch;
  }
  bytes_ += batch.bytes;
  batch.issued = EngineClock::now();
  batch.expected = batch.issued + rate_.TimeFor(bytes_);
  batches_.push_back(std::move(batch));
  return std::nullopt;
}

std::optional<Batch> InFlight::Pop() {
  if (batches_.empty()) return std::nullopt;
  const CudaLibrary& cuda = context_->cuda();
  CudaResult result = cuda->EventQuery(batches_.front().event);
  if (result == kCudaNotReady) return std::nullopt;
  Batch batch = std::move(batches_.front());
  batches_.pop_front();
  bytes_ -= batch.bytes;
  FailAll(batch, cuda.Check(result, "the GPU's work"));
  EngineTime now = EngineClock::now();
  rate_.Learn(batch.bytes, now - std::max(batch.issued, last_done_));
  last_done_ = now;
  events_.push_back(batch.event);
  return batch;
}

}  // namespace nacre::gpu
