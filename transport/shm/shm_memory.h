// The memory of one transport that is shown to others, and what it sees of theirs: one mapping of each,
// however many connections there are. Thread-safe.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "common/status.h"
#include "transport/shared_memory.h"
#include "transport/shm/view_pins.h"
#include "transport/transport.h"

namespace nacre::shm {

class ShmRegion : public MemoryRegion {
 public:
  explicit ShmRegion(std::shared_ptr<SharedMemory> memory)
      : MemoryRegion(memory->data(), memory->size()), memory_(std::move(memory)) {}

  const std::shared_ptr<SharedMemory>& memory() const { return memory_; }

 private:
  const std::shared_ptr<SharedMemory> memory_;
};

using Shown = std::vector<std::shared_ptr<SharedMemory>>;

class ShmMemory {
 public:
  // ENOTSUP where the memory may not be shown to others.
  StatusOr<std::shared_ptr<MemoryRegion>> Register(std::shared_ptr<SharedMemory> memory);

  // The regions that are registered now, the latest kMaxRegions of them.
  Shown Snapshot();

  // See SharedView::Map.
  StatusOr<std::shared_ptr<const SharedView>> View(int fd, size_t size);

  // Returns the record of what devices have pinned of these views: one for all connections that have them.
  std::shared_ptr<ViewPins> Pins(const Views& views);

 private:
  std::mutex mutex_;
  std::vector<std::weak_ptr<ShmRegion>> regions_;
  std::map<SharedMemoryId, std::weak_ptr<const SharedView>> views_;
  std::vector<std::weak_ptr<ViewPins>> pins_;
};

}  // namespace nacre::shm
