// GPUs as libnacre sees them. The driver is looked for when it is first needed, which may take seconds, and
// not by a process that has not loaded it itself: such a process has no device memory. Thread-safe.
#pragma once

#include <nacre/nacre.h>

#include <memory>

#include "api/objects.h"
#include "common/status.h"
#include "gpu/gpus.h"
#include "gpu/stream_order.h"

namespace nacre::api {

// Memory of any kind, registered with the client's data plane. EFAULT: nobody's; EINVAL: none at all;
// ENOTSUP: a device's that cannot be used, and why.
StatusOr<std::shared_ptr<Buffer>> RegisterMemory(std::shared_ptr<Client> client, void* address, size_t size);

// Says whose memory it is. Without CUDA it is host memory, or none at all, which the first access shows.
StatusOr<gpu::MemoryInfo> ClassifyMemory(void* address, size_t size);

// EFAULT: the device's memory behind the buffer was freed since it was registered.
Status CheckStillThere(const Buffer& buffer);

// A place in the stream for the operation to begin with. ENOENT, ENOSYS, ENODEV: no GPU, and why. EINVAL:
// the operation's buffers belong to several. ENOTSUP: the GPU cannot make streams wait for us.
StatusOr<std::shared_ptr<gpu::StreamOrder>> JoinStream(void* stream, const Operation& operation);

// The same of the GPU whose memory is at the address; null, or host memory: the stream's own.
StatusOr<std::shared_ptr<gpu::StreamOrder>> EnterStream(void* stream, const void* memory,
                                                        Connection& connection);

// Fills in all but `paths`.
void DescribeDevices(nacre_capabilities* capabilities);

}  // namespace nacre::api
