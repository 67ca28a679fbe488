// The calling thread's state in the fake driver.
#pragma once

#include <mutex>
#include <vector>

#include "gpu/cuda_abi.h"

namespace nacre::fake_cuda {

// The thread's contexts, the current one last.
std::vector<CUctx_st*>& Current();

// OK if a call that needs a context has one that works.
gpu::CudaResult Ready();

// OK unless somebody captures in such a way that calls of other threads must be safe ones: "the capture mode
// … global … prohibits potentially unsafe API calls" of every thread that has not made itself relaxed
// (cuStreamBeginCapture, cuThreadExchangeStreamCaptureMode). A call that is refused so ends the capture
// (measured on an H100: it is invalid afterwards).
gpu::CudaResult SafeToCall();

// The stream that a handle means, which may be one of those for default streams.
bool IsDefault(gpu::CudaStream stream);
CUstream_st* StreamOrDefault(gpu::CudaStream stream);

// Guards what contexts are made of.
std::mutex& ContextsMutex();

}  // namespace nacre::fake_cuda
