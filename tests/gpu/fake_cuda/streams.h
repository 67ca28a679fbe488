// The fake's streams, which do their work late and in order, and the hardware queues that some of it goes
// through. Thread-safe.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "gpu/cuda_abi.h"

namespace nacre::fake_cuda {

// One thread: what a stream does, in order.
class WorkThread {
 public:
  WorkThread();
  // Does what is still enqueued.
  ~WorkThread();
  WorkThread(const WorkThread&) = delete;
  WorkThread& operator=(const WorkThread&) = delete;

  void Enqueue(std::function<void()> work);
  void Synchronize();
  // Until less than this has not begun.
  void AwaitRoom(size_t room);

 private:
  void Loop();

  std::mutex mutex_;
  std::condition_variable wake_, begun_;
  std::deque<std::function<void()>> work_;
  bool stopping_ = false;
  std::thread thread_;
};

// A queue that several streams share. Work that they enqueue for the GPU's processors is done in the order in
// which it was enqueued, whatever their priority, as on a GPU with fewer queues than streams
// (CUDA_DEVICE_MAX_CONNECTIONS).
class HardwareQueue {
 public:
  // A place at the end.
  uint64_t Join();
  // Does the work when everything before the place is done.
  void Do(uint64_t place, const std::function<void()>& work);

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  uint64_t joined_ = 0, done_ = 0;
};

// Which part of the GPU does a piece of work: the processors take it from a hardware queue, the copy engines
// take copies to the GPU of 32 KiB or more, copies of several rows, and all copies from the GPU (measured on
// an H100, gpu/stream_waits.h).
enum class Unit { kProcessors, kCopyEngine };

// The queues and threads of one context's streams. Knob "queues": how many there are; 0: one for each stream.
class HardwareQueues {
 public:
  std::shared_ptr<WorkThread> NewThread();
  // Null: the stream has its own.
  std::shared_ptr<HardwareQueue> NextQueue();
  // Waits for everything that is enqueued now.
  void Synchronize();

 private:
  std::mutex mutex_;
  std::vector<std::weak_ptr<WorkThread>> threads_;
  std::vector<std::shared_ptr<HardwareQueue>> queues_;
  size_t next_ = 0;
};

}  // namespace nacre::fake_cuda

// The objects behind the handles of the driver's interface.
struct CUctx_st {
  int ordinal = 0;
  nacre::fake_cuda::HardwareQueues queues;
  std::atomic<nacre::gpu::CudaResult> error{0};  // of the device, for ever
  std::unique_ptr<CUstream_st> default_stream;
  int retained = 0;
  std::atomic<int> blocking_captures{0};  // by streams that the default stream waits for
  std::mutex enqueuing;                   // with the knob "room"

  CUctx_st();
  ~CUctx_st();
};

struct CUstream_st {
  // `blocking`: the default stream waits for it.
  CUstream_st(CUctx_st* context, bool blocking);
  // Waits for what is still enqueued.
  ~CUstream_st();

  void Enqueue(nacre::fake_cuda::Unit unit, std::function<void()> work);
  void Synchronize();

  // While it captures, what is enqueued is noted in a graph (which the fake does not keep) and not done.
  void BeginCapture();
  void EndCapture();
  bool capturing() const { return capturing_; }

  CUctx_st* const context;

 private:
  const bool blocking_;
  const std::shared_ptr<nacre::fake_cuda::WorkThread> thread_;
  const std::shared_ptr<nacre::fake_cuda::HardwareQueue> queue_;
  std::mutex mutex_;  // makes the order in the queue that in the stream
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
