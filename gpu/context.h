// A GPU's primary context, retained: the one that the application's runtime API uses too. Immutable after
// construction, hence thread-safe; the last owner releases it.
#pragma once

#include <memory>
#include <string_view>

#include "common/status.h"
#include "gpu/cuda_library.h"

namespace nacre::gpu {

class Context {
 public:
  static StatusOr<std::shared_ptr<Context>> Retain(std::shared_ptr<const CudaLibrary> cuda, int ordinal);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  const CudaLibrary& cuda() const { return *cuda_; }
  CudaContext handle() const { return handle_; }
  int ordinal() const { return ordinal_; }

  // Whether this process may use it: not in a forked child, where destructors must leave everything alone.
  bool Usable() const { return cuda_->CheckProcess().ok(); }

 private:
  Context(std::shared_ptr<const CudaLibrary> cuda, int ordinal) : cuda_(std::move(cuda)), ordinal_(ordinal) {}

  const std::shared_ptr<const CudaLibrary> cuda_;
  const int ordinal_;
  CudaContext handle_ = nullptr;
};

// While it lives the context is the calling thread's current one; the application's own comes back
// afterwards. Meanwhile the thread may allocate and ask for events although another one captures a graph:
// what we do has no part in that, and without this the driver would refuse it and spoil the capture.
class UseContext {
 public:
  explicit UseContext(const Context& context) : UseContext(context.cuda(), context.handle()) {}
  // `cuda` must outlive it.
  UseContext(const CudaLibrary& cuda, CudaContext context);
  ~UseContext();
  UseContext(const UseContext&) = delete;
  UseContext& operator=(const UseContext&) = delete;

  const Status& status() const { return status_; }

 private:
  const CudaLibrary& cuda_;
  Status status_;
  int capture_mode_ = kCudaCaptureRelaxed;  // the thread's own meanwhile
};

}  // namespace nacre::gpu
