#include "transport/shm/shm_memory.h"

#include <algorithm>

#include "transport/shm/setup.h"

namespace nacre::shm {

StatusOr<std::shared_ptr<MemoryRegion>> ShmMemory::Register(std::shared_ptr<SharedMemory> memory) {
  RETURN_IF_ERROR(memory->shareable());
  auto region = std::make_shared<ShmRegion>(std::move(memory));
  std::lock_guard lock(mutex_);
  std::erase_if(regions_, [](const std::weak_ptr<ShmRegion>& old) { return old.expired(); });
  regions_.push_back(region);
  return region;
}

Shown ShmMemory::Snapshot() {
  Shown shown;
  std::lock_guard lock(mutex_);
  for (auto weak = regions_.rbegin(); weak != regions_.rend() && shown.size() < kMaxRegions; ++weak) {
    if (auto region = weak->lock()) shown.push_back(region->memory());
  }
  return shown;
}

StatusOr<std::shared_ptr<const SharedView>> ShmMemory::View(int fd, size_t size) {
  ASSIGN_OR_RETURN(const SharedMemoryId id, IdentifySharedMemory(fd));
  std::lock_guard lock(mutex_);
  std::erase_if(views_, [](const auto& entry) { return entry.second.expired(); });
  if (auto known = views_[id].lock(); known != nullptr && known->bytes().size() == size) return known;
  ASSIGN_OR_RETURN(std::shared_ptr<const SharedView> view, SharedView::Map(fd, size));
  views_[id] = view;
  return view;
}

std::shared_ptr<ViewPins> ShmMemory::Pins(const Views& views) {
  std::lock_guard lock(mutex_);
  std::erase_if(pins_, [](const std::weak_ptr<ViewPins>& old) { return old.expired(); });
  for (const std::weak_ptr<ViewPins>& weak : pins_) {
    if (auto known = weak.lock(); known != nullptr && known->views() == views) return known;
  }
  auto pins = std::make_shared<ViewPins>(views);
  pins_.push_back(pins);
  return pins;
}

}  // namespace nacre::shm
