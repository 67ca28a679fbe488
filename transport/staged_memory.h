// Host memory in the place of a device's memory, for a call over a path that does not reach the device: the
// peer puts into staging buffers, and the copy engine takes on what it has put.
//
// For paths on which the peer writes by itself (RDMA), so that all of a call's memory has to be there before
// it begins. A socket, which hands over what has arrived piece by piece, needs buffers for what is on its way
// only and stages by itself (tcp/client_connection.cc). Calls overlap: while one is copied others are put.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "common/task.h"
#include "transport/memory.h"
#include "transport/memory_device.h"

namespace nacre {

// The staging buffers of all devices as regions of a transport, each slot registered once. Thread-safe.
class StagingRegions {
 public:
  using Register = std::function<StatusOr<std::shared_ptr<MemoryRegion>>(std::byte* data, size_t size)>;

  explicit StagingRegions(Register register_memory) : register_(std::move(register_memory)) {}

  StatusOr<std::shared_ptr<MemoryRegion>> Find(const std::shared_ptr<MemoryDevice>& device,
                                               std::span<std::byte> slot);

 private:
  struct Slot {
    std::shared_ptr<MemoryDevice> device;  // whose destruction takes the memory away
    std::shared_ptr<MemoryRegion> region;
  };

  const Register register_;
  std::mutex mutex_;
  std::map<std::byte*, Slot> slots_;
};

// Buffers that stand for one call's memory. For one coroutine. The buffers are in use while it lives.
class StagedMemory {
 public:
  // Waits for buffers. ENOTSUP: there are not so many. `regions` must outlive what it returns.
  static Task<StatusOr<StagedMemory>> Take(StagingRegions* regions, std::vector<MemorySpan> memory);

  // As long as the device's.
  const std::vector<MemorySpan>& spans() const { return spans_; }

  // Copies all of it to the device. Where the peer has put nothing, the device's memory holds anything
  // afterwards.
  Task<Status> Deliver();

 private:
  std::shared_ptr<MemoryDevice> device_;
  FlatMemory memory_;
  std::vector<StagingBuffer> buffers_;
  std::vector<MemorySpan> spans_;
};

}  // namespace nacre
