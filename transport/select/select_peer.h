// A peer that chooses its path (select_transport.h), and the regions it takes. Thread-safe.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/task.h"
#include "transport/select/select_transport.h"

namespace nacre {

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

  // Of a device's memory: whether the last call with it had to take another path than the one chosen.
  void SetRefused(bool refused) { refused_ = refused; }
  bool refused() const { return refused_; }

 private:
  const std::shared_ptr<void> owner_;  // of the memory; goes last
  const std::shared_ptr<MemoryDevice> device_;
  const std::vector<std::shared_ptr<MemoryRegion>> parts_;
  std::atomic<bool> refused_ = false;
};

// INVALID_ARGUMENT for an address that the TCP transport does not know.
StatusOr<std::shared_ptr<Peer>> MakeSelectPeer(Executor executor, Clock& clock,
                                               std::shared_ptr<const SelectOptions> options,
                                               std::string address);

}  // namespace nacre
