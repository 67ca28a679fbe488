// The functions of the driver's interface for streams, captures and events.
#include <unistd.h>

#include <atomic>
#include <utility>

#include "gpu/cuda_abi.h"
#include "tests/gpu/fake_cuda/current.h"
#include "tests/gpu/fake_cuda/knobs.h"
#include "tests/gpu/fake_cuda/memory.h"
#include "tests/gpu/fake_cuda/streams.h"

namespace nacre::fake_cuda {
namespace {

using namespace gpu;

constexpr int kLeastPriority = 0, kGreatestPriority = -5;  // as an H100 says

std::atomic<int> global_captures{0};
std::atomic<bool> capture_spoilt{false};
thread_local int capture_mode = kCudaCaptureGlobal;

}  // namespace

CudaResult SafeToCall() {
  if (global_captures == 0 || capture_mode == kCudaCaptureRelaxed) return kCudaSuccess;
  capture_spoilt = true;
  return kCudaStreamCaptureUnsupported;
}

// The last two are the legacy default stream and that of the thread: here both are what null is.
bool IsDefault(CudaStream stream) { return reinterpret_cast<uintptr_t>(stream) <= 2; }

CUstream_st* StreamOrDefault(CudaStream stream) {
  if (!IsDefault(stream)) return stream;
  std::lock_guard lock(ContextsMutex());
  CUctx_st* context = Current().back();
  if (context->default_stream == nullptr)
    context->default_stream = std::make_unique<CUstream_st>(context, true);
  return context->default_stream.get();
}

}  // namespace nacre::fake_cuda

using namespace nacre::fake_cuda;

extern "C" {

CudaResult cuStreamCreate(CudaStream* stream, unsigned flags) {
  if (CudaResult result = Ready(); result != kCudaSuccess) return result;
  *stream = new CUstream_st(Current().back(), (flags & kCudaStreamNonBlocking) == 0);
  return kCudaSuccess;
}
CudaResult cuStreamCreateWithPriority(CudaStream* stream, unsigned flags, int) {
  return cuStreamCreate(stream, flags);
}
CudaResult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  if (CudaResult result = Ready(); result != kCudaSuccess) return result;
  *least = kLeastPriority;
  *greatest = kGreatestPriority;
  return kCudaSuccess;
}
CudaResult cuStreamDestroy_v2(CudaStream stream) {
  delete stream;
  return kCudaSuccess;
}
CudaResult cuStreamGetCtx(CudaStream stream, CudaContext* context) {
  if (IsDefault(stream) && Current().empty()) return kCudaInvalidContext;
  *context = IsDefault(stream) ? Current().back() : stream->context;
  return kCudaSuccess;
}
CudaResult cuStreamSynchronize(CudaStream stream) {
  if (Current().empty()) return kCudaInvalidContext;
  if (CudaResult result = SafeToCall(); result != kCudaSuccess) return result;
  StreamOrDefault(stream)->Synchronize();
  return Ready();
}
CudaResult cuStreamBeginCapture_v2(CudaStream stream, int mode) {
  if (stream == nullptr || stream->capturing()) return kCudaInvalidValue;
  stream->BeginCapture();
  capture_spoilt = false;
  if (mode == kCudaCaptureGlobal) ++global_captures;
  return kCudaSuccess;
}
CudaResult cuStreamEndCapture(CudaStream stream, void** graph) {
  if (stream == nullptr || !stream->capturing()) return kCudaInvalidValue;
  stream->EndCapture();
  if (global_captures > 0) --global_captures;
  *graph = nullptr;
  return capture_spoilt ? kCudaStreamCaptureInvalidated : kCudaSuccess;
}
CudaResult cuStreamIsCapturing(CudaStream stream, int* status) {
  if (CudaResult result = Ready(); result != kCudaSuccess) return result;
  if (stream == nullptr && Current().back()->blocking_captures > 0) return kCudaStreamCaptureImplicit;
  *status = stream != nullptr && stream->capturing() ? kCudaCaptureActive : kCudaCaptureNone;
  return kCudaSuccess;
}
CudaResult cuThreadExchangeStreamCaptureMode(int* mode) {
  std::swap(*mode, capture_mode);
  return kCudaSuccess;
}
CudaResult cuStreamWriteValue32_v2(CudaStream stream, CudaAddress address, uint32_t value, unsigned) {
  if (CudaResult result = Ready(); result != kCudaSuccess) return result;
  auto* word = reinterpret_cast<uint32_t*>(address);
  if (!GetMemory().IsPinned(word, sizeof *word)) return kCudaInvalidValue;
  StreamOrDefault(stream)->Enqueue(Unit::kProcessors,
                                   [=] { __atomic_store_n(word, value, __ATOMIC_RELEASE); });
  return kCudaSuccess;
}
CudaResult cuStreamWaitValue32_v2(CudaStream stream, CudaAddress address, uint32_t value, unsigned flags) {
  if (CudaResult result = Ready(); result != kCudaSuccess) return result;
  auto* word = reinterpret_cast<uint32_t*>(address);
  if (!GetMemory().IsPinned(word, sizeof *word) || flags != kCudaStreamWaitGeq) return kCudaInvalidValue;
  StreamOrDefault(stream)->Enqueue(Unit::kProcessors, [=] {
    while (static_cast<int32_t>(__atomic_load_n(word, __ATOMIC_ACQUIRE) - value) < 0) usleep(20);
  });
  return kCudaSuccess;
}

CudaResult cuEventCreate(CudaEvent* event, unsigned) {
  if (CudaResult result = Ready(); result != kCudaSuccess) return result;
  *event = new CUevent_st;
  (*event)->context = Current().back();
  ++GetCounters().events;
  return kCudaSuccess;
}
CudaResult cuEventDestroy_v2(CudaEvent event) {
  if (event == nullptr) return kCudaInvalidHandle;
  delete event;
  --GetCounters().events;
  return kCudaSuccess;
}
CudaResult cuEventRecord(CudaEvent event, CudaStream stream) {
  if (CudaResult result = Ready(); result != kCudaSuccess) return result;
  if (event == nullptr) return kCudaInvalidHandle;
  ++*event->pending;
  StreamOrDefault(stream)->Enqueue(Unit::kCopyEngine, [pending = event->pending] { --*pending; });
  return kCudaSuccess;
}
CudaResult cuEventQuery(CudaEvent event) {
  if (CudaResult result = SafeToCall(); result != kCudaSuccess) return result;
  if (event->context->error != kCudaSuccess) return event->context->error;
  return *event->pending > 0 ? kCudaNotReady : kCudaSuccess;
}

}  // extern "C"
