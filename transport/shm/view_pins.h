// What of a server's memory a device has pinned, so that its copy engine reads it at full speed. A pool may
// be many times as large as what is ever read out of it, and pinning takes longer than reading: so each unit
// is pinned when the first byte of it is wanted, and stays pinned (docs/decisions/0084-pinned-by-units.md).
//
// For the views of one connection, which outlive it. Thread-safe.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "common/task.h"
#include "transport/memory_device.h"
#include "transport/shm/pieces.h"

namespace nacre::shm {

class ViewPins {
 public:
  // Returns when the pieces, which lie in the views, are pinned, or cannot be; then the device copies slowly.
  Task<void> Pin(std::shared_ptr<MemoryDevice> device, const Views& views, Pieces pieces);

 private:
  using Unit = std::pair<std::shared_ptr<MemoryDevice>, const std::byte*>;

  bool Knows(const Unit& unit);
  void Note(const Unit& unit, StatusOr<std::shared_ptr<void>> pinned);

  std::mutex mutex_;
  std::map<Unit, std::shared_ptr<void>> pins_;  // by the unit's first byte; null: it cannot be pinned
};

}  // namespace nacre::shm
