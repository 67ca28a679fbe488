// Zeroing and checksums of a call's memory wherever it is: done at once where the CPU may touch it, else
// gathered and done by its device in one go. For one coroutine at a time.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/status.h"
#include "common/task.h"
#include "transport/memory_device.h"

namespace nacre::client {

class MemoryWork {
 public:
  // Of all memory it is given; null: host memory.
  explicit MemoryWork(std::shared_ptr<MemoryDevice> device) : device_(std::move(device)) {}

  void Zero(std::span<std::byte> memory);

  // sums[i] becomes the checksum of the i-th 4 KiB block that [offset, offset + memory.size()) touches,
  // appended to what it is of (0: of nothing). Bytes of one block come in order. The places must stay until
  // Finish has returned.
  void Sum(uint64_t offset, std::span<const std::byte> memory, uint32_t* sums);

  // Everything asked for is done when it has returned OK.
  Task<Status> Finish();

 private:
  const std::shared_ptr<MemoryDevice> device_;
  std::vector<iovec> zero_;
  std::vector<iovec> pieces_;      // each within one block
  std::vector<uint32_t*> places_;  // of their sums
};

}  // namespace nacre::client
