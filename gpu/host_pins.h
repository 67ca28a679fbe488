// Host memory of others, the servers' pools above all, made known to CUDA so that the copy engines read it at
// full rate. One registration for each range, shared by all GPUs; the last token unregisters, for which the
// driver waits until every stream has done its work. Thread-safe.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <span>

#include "common/status.h"
#include "gpu/context.h"
#include "gpu/pinned_ranges.h"

namespace nacre::gpu {

class HostPins : public std::enable_shared_from_this<HostPins> {
 public:
  explicit HostPins(std::shared_ptr<PinnedRanges> pinned) : pinned_(std::move(pinned)) {}

  // Null if the range is not pinned yet.
  std::shared_ptr<void> Find(std::span<const std::byte> range);

  // Takes long for much memory (the kernel pins every page). `read_only` if the device can take what may not
  // be written. ENOTSUP with CUDA's reason. EBUSY: the range is being unregistered. That may wait for a
  // stream which waits for the caller, so the caller does not wait for it. Where somebody else has registered
  // the range the token is a mere formality.
  StatusOr<std::shared_ptr<void>> Pin(std::shared_ptr<Context> context, std::span<const std::byte> range,
                                      bool read_only);

  const std::shared_ptr<PinnedRanges>& ranges() const { return pinned_; }

 private:
  using Key = std::pair<const std::byte*, size_t>;

  bool Unpinning(std::span<const std::byte> range);
  void Unpin(const Context& context, std::span<const std::byte> range);

  const std::shared_ptr<PinnedRanges> pinned_;
  std::mutex pinning_;  // one registration at a time: two of one range would collide
  std::mutex mutex_;
  std::map<Key, std::weak_ptr<void>> tokens_;  // expired: is being unregistered
};

}  // namespace nacre::gpu
