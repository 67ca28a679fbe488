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

UseContext::UseContext(const Context& context)
    : context_(context),
      status_(context.cuda().Check(context.cuda()->CtxPushCurrent(context.handle()), "cuCtxPushCurrent")) {
  if (status_.ok()) context_.cuda()->ThreadExchangeStreamCaptureMode(&capture_mode_);
}

UseContext::~UseContext() {
  if (!status_.ok()) return;
  CudaContext popped = nullptr;
  context_.cuda()->ThreadExchangeStreamCaptureMode(&capture_mode_);
  context_.cuda()->CtxPopCurrent(&popped);
}

}  // namespace nacre::gpu
