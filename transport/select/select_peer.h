// A peer that chooses its path (select_transport.h), and the regions it takes. Thread-safe.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/task.h"
#include "transport/select/select_transport.h"
#include "transport/staged_memory.h"

namespace nacre {

// How bytes get into memory, and out of it, over the chosen path.
enum class WayIn {
  kDirect,  // as the path itself has it
  kStaged,  // a device's memory: put into staging buffers, then copied
  kTcp,     // the path cannot do that either
};

// Memory registered with each candidate; null where one could not.
class SelectRegion : public MemoryRegion {
 public:
  SelectRegion(std::byte* data, size_t size, std::vector<std::shared_ptr<MemoryRegion>> parts,
               std::shared_ptr<void> owner, std::shared_ptr<MemoryDevice> device)
      : MemoryRegion(data, size),
        owner_(std::move(owner)),
        device_(std::move(device)),
        parts_(std::move(parts)) {}

  const std::shared_ptr<MemoryDevice>& device() const override { return device_; }

  const std::shared_ptr<MemoryRegion>& part(size_t candidate) const { return parts_[candidate]; }

  // How the last call with it went.
  void SetWayIn(WayIn way) {
    if (way_in_ != way) way_in_ = way;  // all calls read it, few change it
  }
  WayIn way_in() const { return way_in_; }

 private:
  const std::shared_ptr<void> owner_;  // of the memory; goes last
  const std::shared_ptr<MemoryDevice> device_;
  const std::vector<std::shared_ptr<MemoryRegion>> parts_;
  std::atomic<WayIn> way_in_ = WayIn::kDirect;
};

// `staging`: devices' staging buffers as regions of the same transport. INVALID_ARGUMENT for an address that
// the TCP transport does not know.
StatusOr<std::shared_ptr<Peer>> MakeSelectPeer(Executor executor, Clock& clock,
                                               std::shared_ptr<const SelectOptions> options,
                                               std::shared_ptr<StagingRegions> staging, std::string address);

}  // namespace nacre
