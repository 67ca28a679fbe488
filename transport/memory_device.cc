#include "transport/memory_device.h"

#include <absl/strings/str_format.h>

namespace nacre {

Task<StatusOr<std::vector<StagingBuffer>>> MemoryDevice::StageAll(size_t size) {
  std::vector<StagingBuffer> buffers;
  const AsyncMutex::Guard turn = co_await several_.Lock();
  CO_ASSIGN_OR_RETURN(const uint64_t room, co_await ReserveStaging(size));
  if (size > room) {
    co_return ErrnoError(ENOTSUP, absl::StrFormat("a call with %d bytes of %s's memory does not fit into the "
                                                  "%d bytes of its staging buffers",
                                                  size, name(), room));
  }
  while (size > 0) {
    CO_ASSIGN_OR_RETURN(StagingBuffer buffer, co_await Stage(size));
    size -= buffer.bytes.size();
    buffers.push_back(std::move(buffer));
  }
  co_return buffers;
}

}  // namespace nacre
