// The GPUs of this machine, and which memory is whose. An application or a daemon opens it once; nothing of
// CUDA is loaded before. Thread-safe. No context is made on a GPU before its first use.
//
// Errors of Open say what the machine lacks: ENOENT no driver library, ENOSYS a driver that is too old,
// ENODEV no GPU or one that cuInit refuses. After a fork the child gets EOWNERDEAD from everything here: CUDA
// does not survive a fork.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/status.h"
#include "gpu/device.h"
#include "gpu/options.h"

namespace nacre::gpu {

class CudaLibrary;
struct PointerInfo;

enum class MemoryKind {
  kHost,     // CUDA knows nothing of it
  kPinned,   // host memory that the copy engines reach at full rate
  kManaged,  // migrates by itself: to be used like host memory
  kDevice,   // must not be touched by the CPU
};

// "host", "pinned", "managed", "device".
std::string_view Name(MemoryKind kind);

struct MemoryInfo {
  MemoryKind kind = MemoryKind::kHost;
  std::shared_ptr<Device> device;   // whose memory it is; only with kDevice
  std::span<std::byte> allocation;  // as far as CUDA tells; empty for kHost
  uint64_t buffer_id = 0;           // differs when memory was freed and its addresses are used again
};

class Gpus {
 public:
  static StatusOr<std::shared_ptr<Gpus>> Open(Options options = {});
  ~Gpus();
  Gpus(const Gpus&) = delete;
  Gpus& operator=(const Gpus&) = delete;

  // In the order of CUDA's ordinals.
  const std::vector<std::shared_ptr<Device>>& devices() const { return devices_; }
  int driver_version() const;  // 13000 for 13.0

  // Classifies the `size` bytes (at least one) at an address. They may span several adjacent allocations of
  // one GPU; `allocation` is then all of them. EFAULT: nobody's memory, that of a buffer that was freed for
  // instance, or a span that leaves its allocation. EINVAL: a GPU's, but of another context than its primary
  // one.
  StatusOr<MemoryInfo> Classify(const void* address, size_t size = 1) const;

  // Whether the memory is still that of which Classify has told with this `buffer_id`, for hardly more than
  // the driver takes for one attribute.
  bool IsStill(uint64_t buffer_id, const void* address, size_t size) const;

  // The GPU of a stream (a CUstream or cudaStream_t), which for the default streams is that of the thread's
  // current context. EIO: CUDA does not know; the thread has no context, for instance.
  StatusOr<std::shared_ptr<Device>> OfStream(void* stream) const;

  // As Classify of what must be memory of this device: EINVAL names whose it is instead.
  Status CheckDeviceSpan(const Device& device, std::span<const std::byte> span) const;

 private:
  explicit Gpus(std::shared_ptr<const CudaLibrary> cuda);

  Status CheckOwner(const PointerInfo& info, uint64_t address) const;

  const std::shared_ptr<const CudaLibrary> cuda_;
  std::vector<std::shared_ptr<Device>> devices_;
};

}  // namespace nacre::gpu
