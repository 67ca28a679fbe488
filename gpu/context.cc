#include "gpu/context.h"

namespace nacre::gpu {

StatusOr<std::shared_ptr<Context>> Context::Retain(std::shared_ptr<const CudaLibrary> cuda, int ordinal) {
  RETURN_IF_ERROR(cuda->CheckProcess());
  std::shared_ptr<Context> context(new Context(std::move(cuda), ordinal));
  const CudaLibrary& library = context->cuda();
  CudaContext handle = nullptr;
  RETURN_IF_ERROR(
      library.Check(library->DevicePrimaryCtxRetain(&handle, ordinal), "cuDevicePrimaryCtxRetain"));
  context->handle_ = handle;
  return context;
}

Context::~Context() {
  if (handle_ != nullptr && Usable()) (*cuda_)->DevicePrimaryCtxRelease(ordinal_);
}

UseContext::UseContext(const CudaLibrary& cuda, CudaContext context)
    : cuda_(cuda), status_(cuda.Check(cuda->CtxPushCurrent(context), "cuCtxPushCurrent")) {
  if (status_.ok()) cuda_->ThreadExchangeStreamCaptureMode(&capture_mode_);
}

UseContext::~UseContext() {
  if (!status_.ok()) return;
  CudaContext popped = nullptr;
  cuda_->ThreadExchangeStreamCaptureMode(&capture_mode_);
  cuda_->CtxPopCurrent(&popped);
}

}  // namespace nacre::gpu
