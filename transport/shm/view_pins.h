// The parts of a server's memory that a device has pinned, so that its copy engine reads them at full speed.
// A pool may be many times as large as what is ever read out of it, and pinning takes longer than reading: so
// each unit is pinned when the first byte of it is wanted, and stays pinned
// (docs/decisions/0084-pinned-by-units.md). One of those who want it asks the device, and the others wait for
// that.
//
// Where one unit is read after the one before it, the next ones are pinned ahead: the device that copies is
// then not kept waiting.
//
// For the views of one server, whose connections may end before the last pin has been made. Thread-safe.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "common/task.h"
#include "transport/memory_device.h"
#include "transport/shm/pieces.h"

namespace nacre::shm {

class ViewPins {
 public:
  static constexpr size_t kAhead = 2;  // units

  explicit ViewPins(Views views) : views_(std::move(views)) {}

  const Views& views() const { return views_; }

  // Whether nothing has to be done for Pin of these.
  bool ArePinned(const MemoryDevice* device, const Pieces& pieces);

  // Returns when the pieces, which lie in the views, are pinned, or cannot be; then the device copies slowly.
  static Task<void> Pin(std::shared_ptr<ViewPins> self, std::shared_ptr<MemoryDevice> device, Pieces pieces);

 private:
  using Memory = std::span<const std::byte>;  // of a unit
  using Units = absl::InlinedVector<Memory, 2>;
  using Place = std::pair<const MemoryDevice*, const std::byte*>;
  struct Pinned {
    std::shared_ptr<MemoryDevice> device;
    bool known = false;         // else somebody has asked the device
    bool read = false;          // not only pinned ahead
    std::shared_ptr<void> pin;  // null: it cannot be pinned
    std::vector<OneShot<Unit>> waiting;
  };
  enum class Turn { kIsKnown, kWait, kAsk };

  // These two return the one that has this byte, which lies in a view.
  const SharedView& ViewOf(const std::byte* byte) const;
  Memory UnitOf(const std::byte* byte) const;
  // Those in which the pieces lie, in their order; one behind itself is named once.
  Units UnitsOf(const Pieces& pieces) const;
  // kWait: `answered` is there, and is set when the device has answered. `ahead`: units that the caller is to
  // have pinned, too.
  Turn Join(const std::shared_ptr<MemoryDevice>& device, Memory unit, std::optional<OneShot<Unit>>* answered,
            std::vector<Memory>* ahead);
  std::vector<Memory> Ahead(const std::shared_ptr<MemoryDevice>& device, Memory unit);
  static Task<void> Ask(std::shared_ptr<ViewPins> self, std::shared_ptr<MemoryDevice> device, Memory unit);
  void Note(const MemoryDevice& device, Memory unit, StatusOr<std::shared_ptr<void>> pinned);

  const Views views_;
  std::mutex mutex_;
  std::map<Place, Pinned> pins_;
  bool warned_ = false;
};

}  // namespace nacre::shm
