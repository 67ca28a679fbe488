// The fake's streams: one thread each, which does what is enqueued late and in order. Thread-safe.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "gpu/cuda_abi.h"

// What the handles of the driver's interface point to.
struct CUctx_st {
  int ordinal = 0;
  std::atomic<nacre::gpu::CudaResult> error{0};  // of the device, for ever
  std::unique_ptr<CUstream_st> default_stream;
  int retained = 0;
  std::atomic<int> blocking_captures{0};  // by streams that the default stream waits for

  CUctx_st();
  ~CUctx_st();
};

struct CUstream_st {
  // `blocking`: the default stream waits for it.
  CUstream_st(CUctx_st* context, bool blocking);
  // Does what is still enqueued.
  ~CUstream_st();

  void Enqueue(std::function<void()> work);
  void Synchronize();

  // While it captures, what is enqueued is noted in a graph (which the fake does not keep) and not done.
  void BeginCapture();
  void EndCapture();
  bool capturing() const { return capturing_; }

  CUctx_st* const context;

 private:
  void Loop();

  const bool blocking_;
  std::atomic<bool> capturing_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> queue_;
  bool stopping_ = false;
  std::thread thread_;
};

struct CUevent_st {
  // Shared with the stream, which may outlive it.
  std::shared_ptr<std::atomic<int>> pending = std::make_shared<std::atomic<int>>(0);
  CUctx_st* context = nullptr;
};

struct CUfunc_st {
  void (*run)(CUctx_st* context, const struct KernelArguments& arguments);
  bool has_sums = false;
};
struct CUmod_st {
  int unused = 0;
};

namespace nacre::fake_cuda {

// The named kernel; null if there is none.
CUfunc_st* FindKernel(const char* name);

// Enqueues a launch; the arguments are read now.
void Launch(CUfunc_st* function, void** arguments, CUstream_st* stream);

}  // namespace nacre::fake_cuda
