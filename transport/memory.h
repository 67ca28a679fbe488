// Memory as all transports see it: regions of host and device memory, the flat view of a call's spans (in
// which puts and gets name their place), and the check of a CallRequest. FlatMemory is immutable after
// construction, hence thread-safe.
#pragma once

#include <absl/container/inlined_vector.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/status.h"
#include "transport/transport.h"

namespace nacre {

// Memory that the CPU copies from and to: registering it takes nothing. INVALID_ARGUMENT for a null pointer.
StatusOr<std::shared_ptr<MemoryRegion>> RegisterHostMemory(std::byte* data, size_t size);

// A device's memory that puts reach through the device. INVALID_ARGUMENT for a null pointer.
StatusOr<std::shared_ptr<MemoryRegion>> RegisterDeviceMemory(std::shared_ptr<MemoryDevice> device,
                                                             std::byte* data, size_t size);

// INVALID_ARGUMENT with the offending span or size.
Status CheckCallRequest(const CallRequest& request);

// The status with which Peer::EndGivenUp ends calls that have no connection yet: UNAVAILABLE.
Status NotWaitedFor(const std::string& address);

// The concatenation of a call's spans. Keeps the regions alive.
class FlatMemory {
 public:
  FlatMemory() = default;
  explicit FlatMemory(std::vector<MemorySpan> spans);

  uint64_t size() const { return size_; }
  const std::vector<MemorySpan>& spans() const { return spans_; }
  // Of all spans; null for host memory.
  MemoryDevice* device() const { return spans_.empty() ? nullptr : spans_.front().region->device().get(); }
  bool Contains(uint64_t offset, uint64_t length) const {
    return offset <= size_ && length <= size_ - offset;
  }

  // Appends the pieces of [offset, offset + length), which must be inside, to a container of iovec.
  template <typename Container>
  void AppendPieces(uint64_t offset, uint64_t length, Container* out) const {
    size_t i = FindSpan(offset);
    for (uint64_t within = offset - Start(i); length > 0; ++i, within = 0) {
      uint64_t take = std::min(length, spans_[i].length - within);
      if (take > 0) out->push_back(iovec{spans_[i].data() + within, take});
      length -= take;
    }
  }

 private:
  uint64_t Start(size_t i) const { return i == 0 ? 0 : ends_[i - 1]; }
  size_t FindSpan(uint64_t offset) const;  // the one that holds this byte

  std::vector<MemorySpan> spans_;
  absl::InlinedVector<uint64_t, 2> ends_;  // where each span ends in the flat view
  uint64_t size_ = 0;
};

// Copies between two lists of pieces of equal total length.
void CopyPieces(std::span<const iovec> to, std::span<const iovec> from);

template <typename Byte>
uint64_t TotalSize(std::span<const std::span<Byte>> buffers) {
  uint64_t total = 0;
  for (const auto& buffer : buffers) total += buffer.size();
  return total;
}

template <typename Byte>
iovec ToIovec(std::span<Byte> buffer) {
  return {const_cast<std::byte*>(buffer.data()), buffer.size()};
}

// The answer to a put or get that does not fit the call's memory; OK if it does.
Status CheckTransfer(CallMemory wanted, CallMemory kind, uint64_t memory_size, uint64_t offset,
                     uint64_t length);

}  // namespace nacre
