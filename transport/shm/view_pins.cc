#include "transport/shm/view_pins.h"

#include <algorithm>
#include <cerrno>
#include <span>

#include "common/log.h"

namespace nacre::shm {
namespace {

// The part of a view that is pinned together with this byte of it.
std::span<const std::byte> UnitAround(const std::byte* byte, std::span<const std::byte> view) {
  const size_t into = reinterpret_cast<uintptr_t>(byte) % MemoryDevice::kPinUnit;
  const size_t before = std::min<size_t>(into, byte - view.data());
  const size_t behind = std::min<size_t>(MemoryDevice::kPinUnit - into, view.data() + view.size() - byte);
  return {byte - before, before + behind};
}

std::span<const std::byte> ViewAround(const std::byte* byte, const Views& views) {
  const auto found = std::find_if(views.begin(), views.end(), [byte](const auto& view) {
    return byte >= view->bytes().data() && byte < view->bytes().data() + view->bytes().size();
  });
  return (*found)->bytes();
}

}  // namespace

Task<void> ViewPins::Pin(std::shared_ptr<MemoryDevice> device, const Views& views, Pieces pieces) {
  for (const iovec& piece : pieces) {
    const auto* byte = static_cast<const std::byte*>(piece.iov_base);
    const std::byte* end = byte + piece.iov_len;
    while (byte < end) {
      const std::span<const std::byte> memory = UnitAround(byte, ViewAround(byte, views));
      const Unit unit(device, memory.data());
      if (!Knows(unit)) Note(unit, co_await device->Pin(memory));
      byte = memory.data() + memory.size();
    }
  }
}

bool ViewPins::Knows(const Unit& unit) {
  std::lock_guard lock(mutex_);
  return pins_.contains(unit);
}

void ViewPins::Note(const Unit& unit, StatusOr<std::shared_ptr<void>> pinned) {
  if (ToErrno(pinned.status()) == EBUSY) return;  // another time
  std::lock_guard lock(mutex_);
  const bool first =
      std::none_of(pins_.begin(), pins_.end(), [](const auto& pin) { return pin.second == nullptr; });
  if (!pinned.ok() && first) {
    LogWarning("data plane: %s copies slowly out of a server's memory: %s", unit.first->name(),
               pinned.status().message());
  }
  pins_.insert({unit, pinned.ok() ? *std::move(pinned) : nullptr});
}

}  // namespace nacre::shm
