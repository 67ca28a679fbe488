// Memory that the CPU must not touch: a GPU's. Addresses of it are passed on, never followed; bytes come into
// it and leave it through the device's copy engine and are summed up where they lie (DESIGN §9).
//
// The interface that gpu/ implements for CUDA and that transports call. Thread-safe. Tasks resume on the
// executor they run on. After a task has returned, error or not, the device no longer touches the memory that
// was named in it.
#pragma once

#include <sys/uio.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/status.h"
#include "common/task.h"
#include "transport/dma_buf.h"

namespace nacre {

// Host memory from which, and to which, the copy engine works at its full rate. Belongs to whoever holds it.
struct StagingBuffer {
  std::span<std::byte> bytes;
  std::shared_ptr<void> keep;
  std::span<std::byte> slot;  // what they are part of; it stays while the device does, so register it once
};

class MemoryDevice {
 public:
  virtual ~MemoryDevice() = default;

  virtual std::string name() const = 0;         // "cuda:0"
  virtual int numa_node() const { return -1; }  // that it is nearest to; -1: not known, or there is only one

  // Host memory (any; the slow way if it is neither staging nor pinned) -> device memory of equal total
  // length. Pieces of `to` are device addresses. EIO with the device's own error.
  virtual Task<Status> CopyIn(std::vector<iovec> to, std::vector<iovec> from) = 0;
  // Device memory -> host memory.
  virtual Task<Status> CopyOut(std::vector<iovec> to, std::vector<iovec> from) = 0;
  virtual Task<Status> Zero(std::vector<iovec> pieces) = 0;

  // The CRC32C of each piece of device memory, all computed by the device at once.
  virtual Task<StatusOr<std::vector<uint32_t>>> Crc32c(std::vector<iovec> pieces) = 0;

  // CopyIn, and behind it Crc32c of the blocks into which each of `pieces` is cut from its beginning; these
  // lie in `to` and do not overlap. In one go where the device can, which spares its user a turn.
  virtual Task<StatusOr<std::vector<uint32_t>>> CopyInAndSum(std::vector<iovec> to, std::vector<iovec> from,
                                                             std::vector<iovec> pieces);

  // At most `size` bytes, at least one; waits while all staging buffers are in use. They are free again
  // without further calls to the device's user when the copies under way have ended.
  virtual Task<StatusOr<StagingBuffer>> Stage(size_t size) = 0;

  // Sees to it that there can be staging buffers of `size` bytes at once. How much there can be, if it is
  // less.
  virtual Task<StatusOr<uint64_t>> ReserveStaging(size_t size) { co_return size; }

  // Staging buffers of `size` bytes together, for who needs them all before he begins. Those who do take
  // turns, so that two of them never wait for what the other holds. ENOTSUP: more than there can be.
  Task<StatusOr<std::vector<StagingBuffer>>> StageAll(size_t size);

  // Makes host memory that is mapped in this process, for reading at least, as good as a staging buffer for
  // CopyIn until the last copy of what is returned is gone, which must be before the mapping. Repeated calls
  // share the work. ENOTSUP: the device cannot; EBUSY: not now. CopyIn works all the same.
  //
  // The memory lies between two neighbouring multiples of kPinUnit, as addresses. No device copies out of two
  // pinned ranges at once, so copies are cut there.
  static constexpr size_t kPinUnit = 64 << 20;
  virtual Task<StatusOr<std::shared_ptr<void>>> Pin(std::span<const std::byte> mapped) = 0;

  // How RDMA devices get at this memory. A device whose memory they do not reach has none of it.

  // The pages that hold these bytes, and no more, for an RDMA device to register. ENOTSUP: what is missing,
  // and what to do about it; EFAULT, EINVAL: not this device's memory; ENOMEM: not now.
  virtual StatusOr<DmaBuf> ExportDmaBuf([[maybe_unused]] std::span<const std::byte> memory) {
    return ErrnoError(ENOTSUP, "this device exports no dma-bufs");
  }

  // Memory of the device, of the plainest kind and nobody's but ours, to try out with it what RDMA devices
  // can do: at least kTrialBytes, whole pages. Stays while the device does. ENOMEM: not now.
  static constexpr size_t kTrialBytes = 64 << 10;
  virtual StatusOr<std::span<std::byte>> TrialMemory() {
    return ErrnoError(ENOTSUP, "this device has no memory to try out");
  }

  // OK: the kernel lets RDMA devices register addresses of this device like those of host memory
  // (nvidia-peermem). ENOTSUP: what is missing, and what to load.
  virtual Status PeerMemory() { return ErrnoError(ENOTSUP, "this device is no peer of RDMA devices"); }

  // Tells memory from what had the same addresses before. EFAULT: it was freed.
  virtual StatusOr<uint64_t> BufferId([[maybe_unused]] std::span<const std::byte> memory) {
    return ErrnoError(ENOTSUP, "this device does not identify its memory");
  }

  // How many bytes of it may be registered with RDMA devices at once.
  virtual uint64_t RdmaBudget() { return UINT64_MAX; }

  // Makes what RDMA devices have written visible to work of this device that is enqueued or running already;
  // work that is enqueued later sees it anyhow.
  virtual Status FlushRemoteWrites() { return OkStatus(); }

 protected:
  // The second half of CopyInAndSum by itself.
  Task<StatusOr<std::vector<uint32_t>>> SumBlocks(std::vector<iovec> pieces);

 private:
  AsyncMutex several_;  // held by who takes several staging buffers
};

}  // namespace nacre
