// The fake's streams, and the hardware queues that do their work: late, and in the order in which it was
// enqueued. Thread-safe.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "gpu/cuda_abi.h"

namespace nacre::fake_cuda {

// One thread. Streams that share a queue wait for each other's work, as on a GPU whose queues are fewer than
// its streams (CUDA_DEVICE_MAX_CONNECTIONS); streams of different priorities never share one.
class HardwareQueue {
 public:
  HardwareQueue();
  // Does what is still enqueued.
  ~HardwareQueue();
  HardwareQueue(const HardwareQueue&) = delete;
  HardwareQueue& operator=(const HardwareQueue&) = delete;

  void Enqueue(std::function<void()> work);
  void Synchronize();

 private:
  void Loop();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> work_;
  bool stopping_ = false;
  std::thread thread_;
};

// The queues of one context. Knob "queues": how many there are for each priority; 0: one for each stream.
class HardwareQueues {
 public:
  std::shared_ptr<HardwareQueue> For(int priority);
  // Waits for everything that is enqueued now.
  void Synchronize();

 private:
  struct OfPriority {
    std::vector<std::weak_ptr<HardwareQueue>> queues;
    size_t next = 0;
  };
  std::mutex mutex_;
  std::vector<std::weak_ptr<HardwareQueue>> all_;
  std::map<int, OfPriority> priorities_;
};

}  // namespace nacre::fake_cuda

// What the handles of the driver's interface point to.
struct CUctx_st {
  int ordinal = 0;
  nacre::fake_cuda::HardwareQueues queues;
  std::atomic<nacre::gpu::CudaResult> error{0};  // of the device, for ever
  std::unique_ptr<CUstream_st> default_stream;
  int retained = 0;
  std::atomic<int> blocking_captures{0};  // by streams that the default stream waits for

  CUctx_st();
  ~CUctx_st();
};

struct CUstream_st {
  // `blocking`: the default stream waits for it.
  CUstream_st(CUctx_st* context, bool blocking, int priority = 0);
  // Waits for what is still enqueued.
  ~CUstream_st();

  void Enqueue(std::function<void()> work);
  void Synchronize();

  // While it captures, what is enqueued is noted in a graph (which the fake does not keep) and not done.
  void BeginCapture();
  void EndCapture();
  bool capturing() const { return capturing_; }

  CUctx_st* const context;

 private:
  const bool blocking_;
  const std::shared_ptr<nacre::fake_cuda::HardwareQueue> queue_;
  std::atomic<bool> capturing_{false};
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
