// One GPU: what it is, and its memory as transports and clients use it (transport/memory_device.h).
// Thread-safe. The first use makes the GPU's primary context, which the application's runtime API shares, and
// starts one thread, which sleeps while there is nothing to do. The destruction waits for copies under way.
// Executors whose tasks use it must outlive it.
//
// Errors are EIO with CUDA's own text, unless stated otherwise; EOWNERDEAD in a forked child.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "common/status.h"
#include "gpu/options.h"
#include "transport/memory_device.h"

namespace nacre::gpu {

class CudaLibrary;
class DeviceState;
class HostPins;

// As the driver and sysfs tell.
struct DeviceInfo {
  int ordinal = 0;
  std::string name;        // "NVIDIA H200"
  std::string pci_bus_id;  // "0000:1b:00.0"; empty if unknown
  int numa_node = -1;      // -1: unknown, or there is only one
  int compute_major = 0;
  int compute_minor = 0;
  uint64_t memory_bytes = 0;
  bool dma_buf = false;            // memory can be exported as a dma-buf
  bool gpu_direct_rdma = false;    // nvidia-peermem could work
  bool stream_memory_ops = false;  // StreamOrder works
  bool read_only_host_register = false;
  bool rdma_writes_ordered =
      false;  // no flush needed between a NIC's completion and work that was enqueued before
};

class Device : public MemoryDevice, public std::enable_shared_from_this<Device> {
 public:
  // For Gpus.
  Device(std::shared_ptr<const CudaLibrary> cuda, std::shared_ptr<HostPins> pins, DeviceInfo info,
         Options options);
  ~Device() override;

  const DeviceInfo& info() const { return info_; }

  // Makes the context and everything else that first use would make. Not needed, but takes the time of it at
  // a moment of the caller's choice.
  Task<Status> Start();

  // Allocates all that a read may need of this GPU's driver. Allocations wait for streams that are at work,
  // so a read for which a stream waits must not make any (stream_order.h). Takes some tens of milliseconds
  // the first time. Memory that is not to be had now is asked for when it is needed; an error is that of
  // Start.
  Task<Status> ReserveForStreams();

  // OK: checksums and many zero-fills run as kernels. Otherwise why they do not; the operations work all the
  // same, slower. Starts the device.
  Status kernels();

  // How a read's bytes are verified: "gpu", or "cpu (REASON)".
  std::string verification();

  std::string name() const override;  // "cuda:0"
  int numa_node() const override { return info_.numa_node; }
  Task<Status> CopyIn(std::vector<iovec> to, std::vector<iovec> from) override;
  Task<Status> CopyOut(std::vector<iovec> to, std::vector<iovec> from) override;
  Task<Status> Zero(std::vector<iovec> pieces) override;
  Task<StatusOr<std::vector<uint32_t>>> Crc32c(std::vector<iovec> pieces) override;
  Task<StatusOr<std::vector<uint32_t>>> CopyInAndSum(std::vector<iovec> to, std::vector<iovec> from,
                                                     std::vector<iovec> pieces) override;
  Task<StatusOr<StagingBuffer>> Stage(size_t size) override;
  Task<StatusOr<uint64_t>> ReserveStaging(size_t size) override;
  Task<StatusOr<std::shared_ptr<void>>> Pin(std::span<const std::byte> mapped) override;

  // ENOTSUP with the reason: the driver or the GPU has no such thing.
  StatusOr<DmaBuf> ExportDmaBuf(std::span<const std::byte> memory) override;
  StatusOr<std::span<std::byte>> TrialMemory() override;
  Status PeerMemory() override;
  StatusOr<uint64_t> BufferId(std::span<const std::byte> memory) override;
  // 80 % of what PCIe shows of the memory (BAR1), if NVML tells.
  uint64_t RdmaBudget() override;
  // Does nothing where DeviceInfo::rdma_writes_ordered.
  Status FlushRemoteWrites() override;

  // Makes what the CPU hands to the driver synchronously (a copy that returned) wait for the device, so that
  // a NIC that reads this memory then sees it. For all of the allocation, for ever.
  Status SynchronizeCopies(std::span<const std::byte> memory);

  // The parts behind it, made at first use; for gpu/ and its tests.
  StatusOr<std::shared_ptr<DeviceState>> State();
  // How often a thread was started to make them, for tests.
  int starts() const { return starts_; }

 private:
  // State(), made by another thread if it is not there.
  Task<StatusOr<std::shared_ptr<DeviceState>>> Ready();
  void StartBehind(const OneShot<StatusOr<std::shared_ptr<DeviceState>>>& made);

  const std::shared_ptr<const CudaLibrary> cuda_;
  const std::shared_ptr<HostPins> pins_;
  const DeviceInfo info_;
  const Options options_;
  std::mutex mutex_;
  std::shared_ptr<DeviceState> state_;  // null before the first use, then always the same
  std::atomic<bool> ready_ = false;     // it is there, and may be read without the lock
  std::atomic<bool> reserved_ = false;  // ReserveForStreams is done
  std::mutex start_mutex_;
  std::vector<OneShot<StatusOr<std::shared_ptr<DeviceState>>>> awaiting_start_;
  std::thread starter_;
  std::atomic<int> starts_ = 0;
};

}  // namespace nacre::gpu
