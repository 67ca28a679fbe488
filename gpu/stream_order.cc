#include "gpu/stream_order.h"

#include <absl/strings/str_format.h>

#include <atomic>
#include <cerrno>

#include "gpu/device_state.h"

namespace nacre::gpu {
namespace {

CudaAddress AddressOf(const uint32_t* word) { return reinterpret_cast<CudaAddress>(word); }

// A graph does again, whenever it is launched, what the stream was given during the capture, with the same
// numbers. These have been released by then: nothing would be read and nobody would wait.
Status CheckNoCapture(const CudaLibrary& cuda, CudaStream stream) {
  int capturing = kCudaCaptureNone;
  const CudaResult asked = cuda->StreamIsCapturing(stream, &capturing);
  if (asked == kCudaStreamCaptureImplicit)
    return ErrnoError(EOPNOTSUPP,
                      "the default stream would wait for a stream that is being captured into a graph: read "
                      "in the order of a stream made with cudaStreamNonBlocking, or after the capture");
  RETURN_IF_ERROR(cuda.Check(asked, "cuStreamIsCapturing"));
  if (capturing == kCudaCaptureNone) return OkStatus();
  return ErrnoError(EOPNOTSUPP,
                    "the stream is being captured into a graph, which cannot hold a read: read before the "
                    "graph is launched");
}

class Order : public StreamOrder {
 public:
  Order(std::shared_ptr<Device> device, std::shared_ptr<DeviceState> state,
        std::shared_ptr<StreamFlags> flags)
      : device_(std::move(device)), state_(std::move(state)), flags_(std::move(flags)) {}

  ~Order() override {
    Release();
    *given_up_ = true;
  }

  Status Enqueue(CudaStream stream) {
    state_->waits().Begin();
    waits_ = true;
    UseContext use(*state_->context());
    if (Status status = Announce(use, stream); !status.ok()) {
      flags_->Withdraw();
      return status;
    }
    const CudaLibrary& cuda = state_->context()->cuda();
    return cuda.Check(
        cuda->StreamWaitValue32(stream, AddressOf(&flags_->released), flags_->number, kCudaStreamWaitGeq),
        "cuStreamWaitValue32");
  }

  Task<Status> Arrived() override {
    auto job = std::make_shared<Job>(Job::Kind::kWatch);
    job->arrived = [flags = flags_, given_up = given_up_] { return *given_up || flags->HasArrived(); };
    co_return co_await state_->engine().Run(std::move(job));
  }

  void Release() override {
    flags_->Release();
    if (waits_.exchange(false)) state_->waits().End();
  }

 private:
  // Lets the stream say when it arrives; after an error it will not.
  Status Announce(const UseContext& use, CudaStream stream) {
    RETURN_IF_ERROR(use.status());
    const CudaLibrary& cuda = state_->context()->cuda();
    RETURN_IF_ERROR(CheckNoCapture(cuda, stream));
    return cuda.Check(cuda->StreamWriteValue32(stream, AddressOf(&flags_->arrived), flags_->number, 0),
                      "cuStreamWriteValue32");
  }

  const std::shared_ptr<Device> device_;
  const std::shared_ptr<DeviceState> state_;
  const std::shared_ptr<StreamFlags> flags_;
  std::atomic<bool> waits_ = false;
  const std::shared_ptr<std::atomic<bool>> given_up_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace

StatusOr<std::unique_ptr<StreamOrder>> StreamOrder::Insert(std::shared_ptr<Device> device, void* stream) {
  if (!device->info().stream_memory_ops)
    return ErrnoError(EOPNOTSUPP,
                      absl::StrFormat("%s has no stream memory operations (CUDA 11.7 has them): synchronise "
                                      "with the stream before and after",
                                      device->name()));
  ASSIGN_OR_RETURN(std::shared_ptr<DeviceState> state, device->State());
  ASSIGN_OR_RETURN(std::shared_ptr<StreamFlags> flags, state->flags().Take());
  auto order = std::make_unique<Order>(std::move(device), std::move(state), std::move(flags));
  RETURN_IF_ERROR(order->Enqueue(static_cast<CudaStream>(stream)));
  return order;
}

}  // namespace nacre::gpu
