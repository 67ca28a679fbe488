#include "api/loose_memory.h"

#include <algorithm>
#include <span>

#include "api/devices.h"
#include "api/objects.h"

namespace nacre::api {

StatusOr<std::shared_ptr<Buffer>> LooseMemory::Find(const std::shared_ptr<Client>& client, void* address,
                                                    size_t size) {
  ASSIGN_OR_RETURN(const gpu::MemoryInfo info, ClassifyMemory(address, size));
  if (info.kind != gpu::MemoryKind::kDevice) return RegisterMemory(client, address, size);
  const std::span<std::byte> whole = info.allocation;
  {
    std::lock_guard lock(mutex_);
    auto known = std::find_if(kept_.begin(), kept_.end(), [&](const std::shared_ptr<Buffer>& buffer) {
      const MemoryRegion& region = *buffer->region();
      return region.data() == whole.data() && region.size() >= whole.size() &&
             buffer->traits().id == info.buffer_id;
    });
    if (known != kept_.end()) {
      kept_.splice(kept_.begin(), kept_, known);
      return kept_.front();
    }
  }
  ASSIGN_OR_RETURN(std::shared_ptr<Buffer> made, RegisterMemory(client, whole.data(), whole.size()));
  std::list<std::shared_ptr<Buffer>> gone;  // let go outside of the mutex
  std::lock_guard lock(mutex_);
  auto same_place = [&](const std::shared_ptr<Buffer>& buffer) {
    const std::byte* begin = buffer->region()->data();
    return begin < whole.data() + whole.size() && whole.data() < begin + buffer->region()->size();
  };
  for (auto it = kept_.begin(); it != kept_.end();) {
    const auto next = std::next(it);
    if (same_place(*it)) gone.splice(gone.end(), kept_, it);
    it = next;
  }
  kept_.push_front(made);
  while (kept_.size() > kMost) gone.splice(gone.end(), kept_, std::prev(kept_.end()));
  return made;
}

void LooseMemory::Clear() {
  std::list<std::shared_ptr<Buffer>> gone;
  std::lock_guard lock(mutex_);
  gone.swap(kept_);
}

}  // namespace nacre::api
