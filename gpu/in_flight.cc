#include "gpu/in_flight.h"

namespace nacre::gpu {
namespace {

void FailAll(const Batch& batch, const Status& status) {
  if (status.ok()) return;
  for (const JobPtr& job : batch.jobs) job->Fail(status);
}

}  // namespace

StatusOr<std::unique_ptr<InFlight>> InFlight::Open(std::shared_ptr<Context> context, SharedRate* rate) {
  std::unique_ptr<InFlight> in_flight(new InFlight(std::move(context), rate));
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
  batch.expected = rate_->Begin(batch.bytes, EngineClock::now());
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
  rate_->End(batch.bytes, EngineClock::now());
  FailAll(batch, cuda.Check(result, "the GPU's work"));
  events_.push_back(batch.event);
  return batch;
}

}  // namespace nacre::gpu
