#include "transport/shm/view_pins.h"

#include <algorithm>
#include <cerrno>
#include <span>

#include "common/log.h"

namespace nacre::shm {

const SharedView& ViewPins::ViewOf(const std::byte* byte) const {
  return **std::find_if(views_.begin(), views_.end(), [byte](const auto& view) {
    return byte >= view->bytes().data() && byte < view->bytes().data() + view->bytes().size();
  });
}

ViewPins::Memory ViewPins::UnitOf(const std::byte* byte) const {
  const Memory view = ViewOf(byte).bytes();
  const size_t into = reinterpret_cast<uintptr_t>(byte) % MemoryDevice::kPinUnit;
  const size_t before = std::min<size_t>(into, byte - view.data());
  const size_t behind = std::min<size_t>(MemoryDevice::kPinUnit - into, view.data() + view.size() - byte);
  return {byte - before, before + behind};
}

ViewPins::Units ViewPins::UnitsOf(const Pieces& pieces) const {
  Units units;
  Memory unit;  // the last one
  for (const iovec& piece : pieces) {
    const auto* byte = static_cast<const std::byte*>(piece.iov_base);
    const std::byte* end = byte + piece.iov_len;
    while (byte < end) {
      const bool same = byte >= unit.data() && byte < unit.data() + unit.size();
      if (!same) units.push_back(unit = UnitOf(byte));
      byte = unit.data() + unit.size();
    }
  }
  return units;
}

bool ViewPins::ArePinned(const MemoryDevice* device, const Pieces& pieces) {
  const Units units = UnitsOf(pieces);
  std::lock_guard lock(mutex_);
  return std::ranges::all_of(units, [&](Memory unit) {
    const auto found = pins_.find({device, unit.data()});
    return found != pins_.end() && found->second.known && found->second.read;
  });
}

Task<void> ViewPins::Pin(std::shared_ptr<ViewPins> self, std::shared_ptr<MemoryDevice> device,
                         Pieces pieces) {
  const Executor executor = co_await CurrentExecutor();
  const Units units = self->UnitsOf(pieces);
  for (const Memory unit : units) {
    std::optional<OneShot<Unit>> answered;
    std::vector<Memory> ahead;
    const Turn turn = self->Join(device, unit, &answered, &ahead);
    for (const Memory& next : ahead) Spawn(executor, Ask(self, device, next));
    if (turn == Turn::kAsk) co_await Ask(self, device, unit);
    if (turn == Turn::kWait) co_await answered->Wait();
  }
}

ViewPins::Turn ViewPins::Join(const std::shared_ptr<MemoryDevice>& device, Memory unit,
                              std::optional<OneShot<Unit>>* answered, std::vector<Memory>* ahead) {
  std::lock_guard lock(mutex_);
  const auto [found, fresh] = pins_.try_emplace({device.get(), unit.data()}, Pinned{.device = device});
  Pinned& pinned = found->second;
  if (!std::exchange(pinned.read, true)) *ahead = Ahead(device, unit);
  if (fresh) return Turn::kAsk;
  if (pinned.known) return Turn::kIsKnown;
  pinned.waiting.push_back(answered->emplace());
  return Turn::kWait;
}

// Returns the units behind this one that the caller is to ask the device for, up to the first that the server
// has not used, and notes that they are asked for. Under mutex_.
std::vector<ViewPins::Memory> ViewPins::Ahead(const std::shared_ptr<MemoryDevice>& device, Memory unit) {
  std::vector<Memory> ahead;
  const SharedView& view = ViewOf(unit.data());
  if (unit.data() == view.bytes().data()) return ahead;
  const auto before = pins_.find({device.get(), UnitOf(unit.data() - 1).data()});
  if (before == pins_.end() || !before->second.read) return ahead;
  for (size_t i = 0; i < kAhead && &unit.back() != &view.bytes().back(); ++i) {
    unit = UnitOf(unit.data() + unit.size());
    if (!view.HasMemory(unit)) break;
    const bool fresh = pins_.try_emplace({device.get(), unit.data()}, Pinned{.device = device}).second;
    if (fresh) ahead.push_back(unit);
  }
  return ahead;
}

Task<void> ViewPins::Ask(std::shared_ptr<ViewPins> self, std::shared_ptr<MemoryDevice> device, Memory unit) {
  self->Note(*device, unit, co_await device->Pin(unit));
}

void ViewPins::Note(const MemoryDevice& device, Memory unit, StatusOr<std::shared_ptr<void>> pinned) {
  std::vector<OneShot<Unit>> waiting;
  bool warn = false;
  {
    std::lock_guard lock(mutex_);
    const auto found = pins_.find({&device, unit.data()});
    waiting = std::move(found->second.waiting);
    if (ToErrno(pinned.status()) == EBUSY) {
      pins_.erase(found);  // another time
    } else {
      found->second.known = true;
      if (pinned.ok()) found->second.pin = *pinned;
      warn = !pinned.ok() && !std::exchange(warned_, true);
    }
  }
  if (warn) {
    LogWarning("data plane: %s copies slowly out of a server's memory: %s", device.name(),
               pinned.status().message());
  }
  for (const OneShot<Unit>& each : waiting) each.Set({});
}

}  // namespace nacre::shm
