// Checksums of the blocks of a call's memory, which lies in a device: the transport has them made behind its
// copies (MemoryDevice::CopyInAndSum), so that the device is asked once. The caller makes those that are
// missing when the call is over.
//
// A block's sum counts only if one put has touched the block, and brought all of it: of two that did nobody
// knows which came last. Thread-safe.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "common/status.h"
#include "common/task.h"
#include "transport/memory.h"

namespace nacre {

class BlockSums {
 public:
  // Before the call: bytes of an object that come to its memory behind those added before, cut into the
  // blocks that they touch.
  void Add(uint64_t object_offset, uint64_t length);

  // Before each attempt of the call: what the one before has brought is of no account.
  void Reset();

  // Blocks that follow each other, all but the last of them whole ones.
  struct Run {
    size_t block = 0;  // the first, in the order in which they were added
    size_t count = 0;
    uint64_t offset = 0;  // of the first in the call's memory
    uint64_t length = 0;  // of all

    Run Only(size_t i) const;  // one of them
  };

  // Before these bytes of the call's memory are put: the blocks to be summed up behind them.
  std::vector<Run> Begin(uint64_t offset, uint64_t length);
  // The sums of some of these, one for each block.
  void End(std::span<const Run> runs, std::span<const uint32_t> sums);

  // After the call: of every block, in the order in which they were added; nothing where none was made.
  std::vector<std::optional<uint32_t>> Made() const;

 private:
  enum class State : uint8_t {
    kUntouched,
    kPut,     // as a whole, by one put
    kSummed,  // behind that
    kUnclear,
  };
  struct Block {
    uint64_t begin = 0;
    uint32_t sum = 0;
    uint16_t length = 0;
    State state = State::kUntouched;
  };

  mutable std::mutex mutex_;
  std::vector<Block> blocks_;
  uint64_t size_ = 0;
};

using BlockSumsPtr = std::shared_ptr<BlockSums>;  // null: no sums are wanted

// Copies what was put at `offset` of a call's memory, and has the blocks in it summed up.
Task<Status> CopyToDevice(const FlatMemory& memory, uint64_t offset, std::vector<iovec> from,
                          BlockSumsPtr sums);

}  // namespace nacre
