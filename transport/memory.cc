#include "transport/memory.h"

#include <absl/strings/str_format.h>

#include <algorithm>
#include <cstring>

#include "transport/memory_device.h"
#include "transport/shared_memory.h"

namespace nacre {
namespace {

class HostRegion : public MemoryRegion {
 public:
  HostRegion(std::byte* data, size_t size) : MemoryRegion(data, size) {}
};

class DeviceRegion : public MemoryRegion {
 public:
  DeviceRegion(std::shared_ptr<MemoryDevice> device, std::byte* data, size_t size)
      : MemoryRegion(data, size), device_(std::move(device)) {}

  const std::shared_ptr<MemoryDevice>& device() const override { return device_; }

 private:
  const std::shared_ptr<MemoryDevice> device_;
};

const char* Name(CallMemory kind) {
  switch (kind) {
    case CallMemory::kNone:
      return "no memory";
    case CallMemory::kPutTarget:
      return "memory to put into";
    case CallMemory::kGetSource:
      return "memory to get from";
  }
  return "memory of unknown kind";
}

// The spans are all of one device, or of none, and only puts reach a device.
Status CheckDevice(const CallRequest& request) {
  for (const MemorySpan& span : request.memory) {
    if (span.region->device() != request.memory.front().region->device())
      return ErrnoError(EINVAL, "the spans of one call have to be in the memory of one device");
  }
  if (request.kind == CallMemory::kGetSource && request.memory.size() > 0 &&
      request.memory.front().region->device() != nullptr)
    return ErrnoError(EINVAL, "device memory can be put into, not gotten from: copy it out first");
  return OkStatus();
}

}  // namespace

StatusOr<std::shared_ptr<MemoryRegion>> RegisterHostMemory(std::byte* data, size_t size) {
  if (data == nullptr) return ErrnoError(EINVAL, "cannot register memory at a null address");
  return std::make_shared<HostRegion>(data, size);
}

StatusOr<std::shared_ptr<MemoryRegion>> RegisterDeviceMemory(std::shared_ptr<MemoryDevice> device,
                                                             std::byte* data, size_t size) {
  if (data == nullptr) return ErrnoError(EINVAL, "cannot register device memory at a null address");
  return std::make_shared<DeviceRegion>(std::move(device), data, size);
}

const std::shared_ptr<MemoryDevice>& MemoryRegion::device() const {
  static const std::shared_ptr<MemoryDevice> none;
  return none;
}

std::string Peer::PathFor(const MemoryRegion& memory) const {
  return path().path + (memory.device() == nullptr ? "" : "+staging");
}

StatusOr<std::shared_ptr<MemoryRegion>> Transport::RegisterDevice(std::shared_ptr<MemoryDevice> device,
                                                                  std::byte*, size_t) {
  return ErrnoError(ENOTSUP,
                    absl::StrFormat("this transport does not reach the memory of %s", device->name()));
}

StatusOr<std::shared_ptr<MemoryRegion>> Transport::RegisterShared(std::shared_ptr<SharedMemory> memory) {
  ASSIGN_OR_RETURN(std::shared_ptr<MemoryRegion> region, Register(memory->data(), memory->size()));
  // Destroyed with the region's last user, after the region itself.
  MemoryRegion* const raw = region.get();
  return std::shared_ptr<MemoryRegion>(
      raw, [memory = std::move(memory), region = std::move(region)](MemoryRegion*) mutable {
        region.reset();
        memory.reset();
      });
}

Status NotWaitedFor(const std::string& address) {
  return ErrnoError(ECONNRESET, absl::StrFormat("the connection to %s is not waited for any more", address));
}

Status CheckCallRequest(const CallRequest& request) {
  if (request.body.size() > kMaxBodySize) {
    return ErrnoError(EINVAL, absl::StrFormat("a call's body of %d bytes is larger than the limit of %d",
                                              request.body.size(), kMaxBodySize));
  }
  if (request.kind == CallMemory::kNone && !request.memory.empty()) {
    return ErrnoError(EINVAL, "a call with memory has to say whether it is to put into or to get from");
  }
  for (const MemorySpan& span : request.memory) {
    if (span.region == nullptr) return ErrnoError(EINVAL, "a memory span without a region");
    if (span.offset <= span.region->size() && span.length <= span.region->size() - span.offset) continue;
    return ErrnoError(EINVAL,
                      absl::StrFormat("a memory span of %d bytes at %d lies outside its region of %d bytes",
                                      span.length, span.offset, span.region->size()));
  }
  return CheckDevice(request);
}

FlatMemory::FlatMemory(std::vector<MemorySpan> spans) : spans_(std::move(spans)) {
  ends_.reserve(spans_.size());
  for (const MemorySpan& span : spans_) ends_.push_back(size_ += span.length);
}

size_t FlatMemory::FindSpan(uint64_t offset) const {
  return std::upper_bound(ends_.begin(), ends_.end(), offset) - ends_.begin();
}

void CopyPieces(std::span<const iovec> to, std::span<const iovec> from) {
  size_t t = 0, f = 0, t_done = 0, f_done = 0;
  while (t < to.size() && f < from.size()) {
    size_t take = std::min(to[t].iov_len - t_done, from[f].iov_len - f_done);
    if (take > 0) {
      std::memcpy(static_cast<std::byte*>(to[t].iov_base) + t_done,
                  static_cast<const std::byte*>(from[f].iov_base) + f_done, take);
    }
    t_done += take;
    f_done += take;
    if (t_done == to[t].iov_len) ++t, t_done = 0;
    if (f_done == from[f].iov_len) ++f, f_done = 0;
  }
}

Status CheckTransfer(CallMemory wanted, CallMemory kind, uint64_t memory_size, uint64_t offset,
                     uint64_t length) {
  if (kind != wanted) {
    return ErrnoError(EINVAL, absl::StrFormat("the call has %s, not %s", Name(kind), Name(wanted)));
  }
  if (offset <= memory_size && length <= memory_size - offset) return OkStatus();
  return ErrnoError(EINVAL, absl::StrFormat("%d bytes at %d lie outside the call's memory of %d bytes",
                                            length, offset, memory_size));
}

}  // namespace nacre
