#include "compat/nixl/segments.h"

#include <cerrno>
#include <string>

namespace nacre::nixl {

Error MemorySegment::Register(const Client& client) {
  std::lock_guard lock(mutex_);
  if (registered_) return {};
  auto buffer = client.register_buffer(reinterpret_cast<void*>(place_.addr), place_.len);
  if (!buffer) return buffer.error();
  const auto info = buffer->info();
  if (!info) return info.error();
  const bool device = info->memory == NACRE_MEMORY_DEVICE;
  if (device != (type_ == VRAM_SEG))
    return Error(EINVAL, device ? "DRAM was named, and it is a GPU's memory"
                                : "VRAM was named, and it is no GPU's memory");
  if (device && static_cast<uint64_t>(info->gpu) != place_.devId) {
    return Error(EINVAL, "memory of GPU " + std::to_string(info->gpu) + ", and GPU " +
                             std::to_string(place_.devId) + " was named");
  }
  buffer_ = *std::move(buffer);
  registered_ = true;
  return {};
}

Expected<Span> MemorySegment::Find(const Client& client, const nixlBasicDesc& part) {
  if (Error error = Register(client)) return error;
  const uint64_t offset = part.addr - place_.addr;
  if (part.addr < place_.addr || offset > place_.len || part.len > place_.len - offset)
    return Error(EINVAL, "memory outside of the segment that was registered");
  return buffer_.span(offset, part.len);
}

}  // namespace nacre::nixl
