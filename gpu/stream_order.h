// A place in an application's CUDA stream where the stream stands still until we have done something: how a
// read is ordered after what the stream did before and before what it does next, without a host callback
// (these serialise). Two words of pinned memory: the stream writes the one when it arrives and waits for the
// other.
//
//   auto order = StreamOrder::Insert(device, stream);   // enqueues both, returns at once
//   co_await (*order)->Arrived();                       // the stream got there: earlier work is done
//   ... fill the memory ...
//   (*order)->Release();                                // the stream goes on
//
// The work that ends the wait must not wait for the stream in turn: stream_waits.h says which work of ours
// may be enqueued meanwhile, and Device::ReserveForStreams, before the first Insert, allocates what the
// driver would otherwise allocate only once the stream has done its work.
//
// Thread-safe. The destruction releases the stream, so an error cannot leave it waiting.
#pragma once

#include <memory>

#include "common/status.h"
#include "common/task.h"
#include "gpu/device.h"

namespace nacre::gpu {

class StreamOrder {
 public:
  // `stream` is a CUstream or cudaStream_t of this device; null is the default stream. ENOTSUP: the device
  // has no stream memory operations (synchronise with the stream instead), or the stream is being captured
  // into a graph, or is the default one while a stream that it waits for is being captured.
  static StatusOr<std::unique_ptr<StreamOrder>> Insert(std::shared_ptr<Device> device, void* stream);

  virtual ~StreamOrder() = default;

  // EIO if the device failed meanwhile.
  virtual Task<Status> Arrived() = 0;
  virtual void Release() = 0;
};

}  // namespace nacre::gpu
